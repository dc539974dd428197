DROP VIEW IF EXISTS {prefix}outbox_held;
DROP VIEW IF EXISTS {prefix}outbox_dead_letters;
DROP VIEW IF EXISTS {prefix}outbox_messages_readable;
DROP TABLE IF EXISTS {prefix}outbox_relays;
DROP TABLE IF EXISTS {prefix}outbox_leases;
DROP TABLE IF EXISTS {prefix}outbox_holds;
DROP TABLE IF EXISTS {prefix}outbox_aggregates;
DROP TABLE IF EXISTS {prefix}outbox_messages;
