-- Sends due delayed messages by inserting each row again. Later events of the aggregate have passed them.
WITH due AS (DELETE FROM outbox_messages WHERE available_at <= now() RETURNING *)
INSERT INTO outbox_messages (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject,
                             content_type, payload, headers, dedup_key, created_at, event_id)
SELECT id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject,
       content_type, payload, headers, dedup_key, created_at, event_id
FROM due ORDER BY row_id;
