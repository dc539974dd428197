DROP FUNCTION IF EXISTS {schema}{prefix}outbox_record;
