DROP PROCEDURE IF EXISTS {schema}{prefix}outbox_record;
