DROP VIEW IF EXISTS {prefix}outbox_blocked;
DROP VIEW IF EXISTS {prefix}outbox_dead_letters;
DROP VIEW IF EXISTS {prefix}outbox_messages_readable;
DROP TABLE IF EXISTS {prefix}outbox_relays;
DROP TABLE IF EXISTS {prefix}outbox_leases;
DROP TABLE IF EXISTS {prefix}outbox_blocks;
DROP TABLE IF EXISTS {prefix}outbox_aggregates;
DROP TABLE IF EXISTS {prefix}outbox_messages;
