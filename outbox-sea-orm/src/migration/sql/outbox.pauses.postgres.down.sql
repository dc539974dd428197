DROP TABLE {schema}{prefix}outbox_pauses;
