-- A publication without delayed messages. It must be older than the replication slot.
CREATE PUBLICATION outbox_debezium_due FOR TABLE outbox_messages WHERE (available_at IS NULL)
    WITH (publish = 'insert', publish_via_partition_root = true);
