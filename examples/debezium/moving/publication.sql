-- A publication of the old table alone, because a publication of all tables cannot be changed. Debezium may use it once the slot has
-- confirmed the position that the query returns.
CREATE PUBLICATION outboxevent_debezium FOR TABLE outboxevent WITH (publish = 'insert');
SELECT pg_current_wal_lsn();
