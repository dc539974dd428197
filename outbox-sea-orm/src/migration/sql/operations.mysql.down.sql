DROP TABLE IF EXISTS {schema}{prefix}outbox_operations;
