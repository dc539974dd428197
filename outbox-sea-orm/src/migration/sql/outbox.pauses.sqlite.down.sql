DROP TABLE IF EXISTS {prefix}outbox_pauses;
