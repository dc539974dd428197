DROP TABLE IF EXISTS {prefix}outbox_operations;
