BEGIN;
-- Waits for the transactions that have written to the table, and those that want to wait for this one. So each is wholly before or wholly after it.
SET LOCAL lock_timeout = '5s';
LOCK TABLE outboxevent IN SHARE ROW EXCLUSIVE MODE;
-- The last message of Debezium: when a consumer has it, it has all of the old table.
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES (gen_random_uuid(), 'Order', 'switch', 'OrderOutboxSwitched', '{}');
CREATE TRIGGER outboxevent_forward AFTER INSERT ON outboxevent FOR EACH ROW EXECUTE FUNCTION outboxevent_forward();
-- Debezium reads each row under the publication as it was when the row was written.
ALTER PUBLICATION outboxevent_debezium DROP TABLE outboxevent;
COMMIT;
