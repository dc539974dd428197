DROP TABLE {schema}{prefix}outbox_operations;
