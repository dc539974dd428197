DROP VIEW IF EXISTS {schema}{prefix}outbox_blocked;
DROP VIEW IF EXISTS {schema}{prefix}outbox_dead_letters;
DROP VIEW IF EXISTS {schema}{prefix}outbox_messages_readable;
DROP TABLE IF EXISTS {schema}{prefix}outbox_relays;
DROP TABLE IF EXISTS {schema}{prefix}outbox_leases;
DROP TABLE IF EXISTS {schema}{prefix}outbox_blocks;
DROP TABLE IF EXISTS {schema}{prefix}outbox_aggregates;
DROP TABLE IF EXISTS {schema}{prefix}outbox_messages;
