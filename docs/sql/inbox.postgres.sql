-- Inbox tables for PostgreSQL 12 or later.

-- One row per message that a consumer handled or failed to handle. The transaction of the effect writes status 1 (handled). Other statuses are
-- written outside it. The primary key prevents duplicates: a concurrent duplicate waits for the row until the first transaction ends.
CREATE TABLE inbox_messages (
    consumer     text COLLATE "C" NOT NULL,
    id           uuid NOT NULL,                -- of the event, or derived from its business key
    status       smallint NOT NULL,            -- 0 failed (will be tried again), 1 handled, 2 dead letter
    attempts     integer NOT NULL,             -- those that failed, and repeated ones that left no result
    last_error   text,
    processed_at timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,         -- then the row may be deleted, and a later delivery takes effect again
    CONSTRAINT inbox_messages_pk PRIMARY KEY (consumer, id)
);

-- Expired rows.
CREATE INDEX inbox_messages_expires_at ON inbox_messages (expires_at);

-- Progress of a consumer in an aggregate (strategy `sequence`), written in the transaction of the effect, after its lock. Services number their
-- aggregates independently, so the source is part of the key. `last_event_id` and `last_recorded_at` distinguish a redelivered event from another
-- event with an applied number.
CREATE TABLE inbox_sequences (
    consumer       text COLLATE "C" NOT NULL,
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id   text COLLATE "C" NOT NULL,
    source         text COLLATE "C" NOT NULL,  -- the service that recorded the events (`ce-source`)
    last_sequence  bigint NOT NULL,            -- this one and all before it are done, except the missing ones
    last_event_id  uuid,                       -- of the event with that number; null: nothing is done yet
    last_recorded_at bigint NOT NULL,          -- when the latest of the done events was recorded: microseconds since 1970, 0 if nothing is done
    failing        bigint,                     -- a later one that has failed and is tried again: those after it wait for it
    missing        text,                       -- numbers that were not waited for any longer: JSON array of [first, last]
    updated_at     timestamptz NOT NULL,
    CONSTRAINT inbox_sequences_pk PRIMARY KEY (consumer, aggregate_type, aggregate_id, source)
) WITH (fillfactor = 80);

-- Messages that consumers could not handle, as received. `id` is derived from the delivery, so that a redelivery after a crash adds no second row.
CREATE TABLE inbox_dead_letters (
    id             uuid NOT NULL,
    consumer       text COLLATE "C" NOT NULL,
    event_id       uuid,                       -- this and the next five are null if it is no message of an outbox
    event_type     text COLLATE "C",
    aggregate_type text COLLATE "C",
    aggregate_id   text COLLATE "C",
    sequence       bigint,                     -- also null if unsequenced
    source         text COLLATE "C",           -- the service that gave the sequence (`ce-source`); null without one
    subject        text NOT NULL,
    stream_sequence bigint NOT NULL,           -- given by the stream
    headers        json NOT NULL,              -- array of [name, value]
    payload        bytea NOT NULL,
    error          text NOT NULL,
    attempts       integer NOT NULL,
    status         smallint NOT NULL,          -- 0 open, 1 to be tried again
    created_at     timestamptz NOT NULL,
    CONSTRAINT inbox_dead_letters_pk PRIMARY KEY (id)
);

-- Order of lists.
CREATE INDEX inbox_dead_letters_consumer ON inbox_dead_letters (consumer, created_at);

-- Dead letters marked for retry, in stream order.
CREATE INDEX inbox_dead_letters_retry ON inbox_dead_letters (consumer, stream_sequence) WHERE status = 1;

-- Marked dead letters of an aggregate, by sequence. The predicate is equivalent but spelled differently, so that each query selects one of the two
-- indexes by its spelling: if the statistics show no marked rows, the planner rates both equal.
CREATE INDEX inbox_dead_letters_of_aggregate ON inbox_dead_letters (consumer, aggregate_type, aggregate_id, source, sequence, stream_sequence)
    WHERE status::int4 = 1;

-- View for operators: dead letters with payloads as text. Bytes that are not UTF-8 are shown escaped.
CREATE FUNCTION inbox_readable(bytes bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(bytes, 'escape');
END
$$;

CREATE VIEW inbox_dead_letters_readable AS
SELECT id, consumer, event_id, event_type, aggregate_type, aggregate_id, sequence, error AS reason, attempts,
       CASE status WHEN 0 THEN 'open' WHEN 1 THEN 'to be tried again' ELSE 'unknown' END AS status,
       created_at, subject, stream_sequence, headers, inbox_readable(payload) AS payload
FROM inbox_dead_letters;

-- One row per HTTP request with an idempotency key, written in the transaction of its effect, with the response for retries. `id` is the hash of
-- tenant, principal and key. The columns with these names are for display and may be shortened. The primary key prevents duplicates.
CREATE TABLE inbox_requests (
    id              bytea NOT NULL,
    tenant          text NOT NULL,
    principal       text NOT NULL,
    idempotency_key text NOT NULL,
    route           text NOT NULL,             -- method and path
    fingerprint     bytea NOT NULL,            -- hash of method, path, query, content type and body
    status          smallint,                  -- null: inside the transaction only
    headers         json,                      -- array of [name, value], a character per byte (ISO 8859-1)
    body            bytea,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,      -- then the row may be deleted, and the key used again
    CONSTRAINT inbox_requests_pk PRIMARY KEY (id)
);

-- Expired rows.
CREATE INDEX inbox_requests_expires_at ON inbox_requests (expires_at);

-- Paused consumers. Their processes poll this table once a second.
CREATE TABLE inbox_pauses (
    consumer  text COLLATE "C" NOT NULL,
    reason    text NOT NULL,                   -- for people
    paused_at timestamptz NOT NULL,
    CONSTRAINT inbox_pauses_pk PRIMARY KEY (consumer)
);

-- Audit log of changes by operators: operator, action, reason and progress. Rows are written in the transactions of the changes and never deleted automatically.
CREATE TABLE inbox_operations (
    id           uuid NOT NULL,
    kind         text NOT NULL,
    actor        text NOT NULL,
    reason       text,
    scope        text NOT NULL,                -- what it is to take, as JSON
    messages     text NOT NULL,                -- keys of the first dead letters that it took: 32 hexadecimal digits each
    last_row_id  bigint,                       -- not used here
    until_row_id bigint,                       -- not used here
    changed      bigint NOT NULL,
    started_at   timestamptz NOT NULL,
    finished_at  timestamptz,                  -- null: it runs, or broke off
    CONSTRAINT inbox_operations_pk PRIMARY KEY (id)
);

-- Applied migrations, as recorded by `migrate`.
CREATE TABLE IF NOT EXISTS inbox_migrations (version varchar(255) NOT NULL PRIMARY KEY, applied_at bigint NOT NULL);

INSERT INTO inbox_migrations (version, applied_at) VALUES ('inbox_0001_create_tables', extract(epoch FROM now())::int8) ON CONFLICT DO NOTHING;

INSERT INTO inbox_migrations (version, applied_at) VALUES ('inbox_0002_pauses', extract(epoch FROM now())::int8) ON CONFLICT DO NOTHING;

INSERT INTO inbox_migrations (version, applied_at) VALUES ('inbox_0003_create_operations', extract(epoch FROM now())::int8) ON CONFLICT DO NOTHING;
