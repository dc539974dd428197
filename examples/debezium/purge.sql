-- Deletes rows that are older than 7 days. Repeat the first statement while it deletes rows.
DELETE FROM outbox_messages WHERE status = 0 AND row_id IN (
    SELECT row_id FROM outbox_messages
    WHERE status = 0 AND created_at < now() - interval '7 days' AND (available_at IS NULL OR available_at < now() - interval '7 days')
    ORDER BY row_id LIMIT 10000);
DELETE FROM outbox_dedup_keys WHERE recorded_at < now() - interval '7 days';
