BEGIN;
SET LOCAL lock_timeout = '5s';
LOCK TABLE outboxevent IN SHARE ROW EXCLUSIVE MODE;
DROP TRIGGER outboxevent_forward ON outboxevent;
ALTER PUBLICATION outboxevent_debezium ADD TABLE outboxevent;
COMMIT;
