-- What Debezium reads of the outbox: inserts, and nothing else. Run it as the owner of the tables, who also needs CREATE on the database, and may make
-- roles, before the first start of Debezium: a slot that is older than its publication fails for ever.
--
-- Without `publish` there would be the updates and deletes of rows too, which Debezium reads, decodes and throws away.
CREATE PUBLICATION outbox_debezium FOR TABLE outbox_messages WITH (publish = 'insert', publish_via_partition_root = true);

-- REPLICATION is enough, with CONNECT on the database. With it one can read every publication: keep the password as well as the data.
-- No right on a table is needed, except with a snapshot: GRANT SELECT ON outbox_messages TO outbox_debezium.
CREATE ROLE outbox_debezium LOGIN REPLICATION PASSWORD 'secret';
