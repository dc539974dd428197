-- The names that an old row gets. Here `OrderPlaced` of `Order` becomes order.placed. Write down what your services need: names are
-- [a-z][a-z0-9_-]*, and what outbox_record refuses ends the transaction of the business.
CREATE FUNCTION outboxevent_names(aggregatetype text, type text, OUT aggregate_type text, OUT event_name text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT lower(regexp_replace(aggregatetype, '([a-z0-9])([A-Z])', '\1-\2', 'g')),
           lower(regexp_replace(CASE WHEN starts_with(type, aggregatetype) AND type <> aggregatetype
                                     THEN substr(type, length(aggregatetype) + 1) ELSE type END, '([a-z0-9])([A-Z])', '\1-\2', 'g'))
$$;

-- Records a row of the old table here, with its id. With the rights of its owner, so that the services need no new right.
CREATE FUNCTION outboxevent_forward() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    names record;
BEGIN
    SELECT * INTO names FROM outboxevent_names(NEW.aggregatetype, NEW.type);
    PERFORM outbox_record(names.aggregate_type, NEW.aggregateid, names.event_name, NEW.payload::json, id => NEW.id);
    RETURN NULL;
END
$$;
