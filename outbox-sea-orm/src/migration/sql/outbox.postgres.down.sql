DROP VIEW {schema}{prefix}outbox_messages_readable;
DROP FUNCTION {schema}{prefix}outbox_readable(bytea);
DROP TABLE {schema}{prefix}outbox_leases;
DROP TABLE {schema}{prefix}outbox_aggregates;
DROP TABLE {schema}{prefix}outbox_messages;
