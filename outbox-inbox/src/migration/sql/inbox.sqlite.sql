-- Inbox tables for SQLite 3.35 or later. Each statement can be repeated: migrators open no transaction on SQLite, so an
-- interrupted migration starts again.
--
-- Times are integers: microseconds since 1970-01-01 UTC (with a clock resolution of 1 ms). Use WAL and a `busy_timeout`.

-- One row per message that a consumer handled or failed to handle. The transaction of the effect writes status 1 (handled). Other statuses are
-- written outside it. The primary key prevents duplicates.
CREATE TABLE IF NOT EXISTS {prefix}inbox_messages (
    consumer     TEXT NOT NULL,
    id           BLOB NOT NULL,                -- of the event, or derived from its business key
    status       INTEGER NOT NULL,             -- 0 failed (will be tried again), 1 handled, 2 dead letter
    attempts     INTEGER NOT NULL,             -- those that failed, and repeated ones that left no result
    last_error   TEXT,
    processed_at INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,             -- then the row may be deleted, and a later delivery takes effect again
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;

-- Expired rows.
CREATE INDEX IF NOT EXISTS {prefix}inbox_messages_expires_at ON {prefix}inbox_messages (expires_at);

-- Progress of a consumer in an aggregate (strategy `sequence`), written in the transaction of the effect. Services number their aggregates
-- independently, so the source is part of the key. `last_event_id` and `last_recorded_at` distinguish a redelivered event from another event with an
-- applied number.
CREATE TABLE IF NOT EXISTS {prefix}inbox_sequences (
    consumer       TEXT NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    source         TEXT NOT NULL,              -- the service that recorded the events (`ce-source`)
    last_sequence  INTEGER NOT NULL,           -- this one and all before it are done, except the missing ones
    last_event_id  BLOB,                       -- of the event with that number; null: nothing is done yet
    last_recorded_at INTEGER NOT NULL,         -- when the latest of the done events was recorded: microseconds since 1970, 0 if nothing is done
    failing        INTEGER,                    -- a later one that has failed and is tried again: those after it wait for it
    missing        TEXT,                       -- numbers that were not waited for any longer: JSON array of [first, last]
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id, source)
) WITHOUT ROWID;

-- Messages that consumers could not handle, as received. `id` is derived from the delivery, so that a redelivery after a crash adds no second row.
CREATE TABLE IF NOT EXISTS {prefix}inbox_dead_letters (
    id             BLOB NOT NULL PRIMARY KEY,
    consumer       TEXT NOT NULL,
    event_id       BLOB,                       -- this and the next five are null if it is no message of an outbox
    event_type     TEXT,
    aggregate_type TEXT,
    aggregate_id   TEXT,
    sequence       INTEGER,                    -- also null if unsequenced
    source         TEXT,                       -- the service that gave the sequence (`ce-source`); null without one
    subject        TEXT NOT NULL,
    stream_sequence INTEGER NOT NULL,          -- given by the stream
    headers        TEXT NOT NULL,              -- array of [name, value]
    payload        BLOB NOT NULL,
    error          TEXT NOT NULL,
    attempts       INTEGER NOT NULL,
    status         INTEGER NOT NULL,           -- 0 open, 1 to be tried again
    created_at     INTEGER NOT NULL
);

-- Order of lists.
CREATE INDEX IF NOT EXISTS {prefix}inbox_dead_letters_consumer ON {prefix}inbox_dead_letters (consumer, created_at);

-- Dead letters marked for retry, in stream order.
CREATE INDEX IF NOT EXISTS {prefix}inbox_dead_letters_retry ON {prefix}inbox_dead_letters (consumer, stream_sequence) WHERE status = 1;

-- Marked dead letters of an aggregate, by sequence.
CREATE INDEX IF NOT EXISTS {prefix}inbox_dead_letters_of_aggregate ON {prefix}inbox_dead_letters (consumer, aggregate_type, aggregate_id, source, sequence, stream_sequence)
    WHERE status = 1;

-- View for operators: dead letters with payloads as text. A payload that is not JSON is shown in hexadecimal.
CREATE VIEW IF NOT EXISTS {prefix}inbox_dead_letters_readable AS
SELECT lower(substr(hex(id), 1, 8) || '-' || substr(hex(id), 9, 4) || '-' || substr(hex(id), 13, 4) || '-' ||
             substr(hex(id), 17, 4) || '-' || substr(hex(id), 21)) AS id,
       consumer,
       CASE WHEN event_id IS NOT NULL THEN
       lower(substr(hex(event_id), 1, 8) || '-' || substr(hex(event_id), 9, 4) || '-' || substr(hex(event_id), 13, 4) || '-' ||
             substr(hex(event_id), 17, 4) || '-' || substr(hex(event_id), 21)) END AS event_id,
       event_type, aggregate_type, aggregate_id, sequence, error AS reason, attempts,
       CASE status WHEN 0 THEN 'open' WHEN 1 THEN 'to be tried again' ELSE 'unknown' END AS status,
       strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') AS created_at,
       subject, stream_sequence, headers,
       CASE WHEN json_valid(CAST(payload AS TEXT)) THEN CAST(payload AS TEXT) ELSE hex(payload) END AS payload
FROM {prefix}inbox_dead_letters;

-- One row per HTTP request with an idempotency key, written in the transaction of its effect, with the response for retries. `id` is the hash of
-- tenant, principal and key. The columns with these names are for display and may be shortened. The primary key prevents duplicates.
CREATE TABLE IF NOT EXISTS {prefix}inbox_requests (
    id              BLOB NOT NULL PRIMARY KEY,
    tenant          TEXT NOT NULL,
    principal       TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    route           TEXT NOT NULL,             -- method and path
    fingerprint     BLOB NOT NULL,             -- hash of method, path, query, content type and body
    status          INTEGER,                   -- null: inside the transaction only
    headers         TEXT,                      -- array of [name, value], a character per byte (ISO 8859-1)
    body            BLOB,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL           -- then the row may be deleted, and the key used again
);

-- Expired rows.
CREATE INDEX IF NOT EXISTS {prefix}inbox_requests_expires_at ON {prefix}inbox_requests (expires_at);
