DROP VIEW IF EXISTS {prefix}outbox_record;
