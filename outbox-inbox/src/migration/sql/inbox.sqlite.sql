-- Inbox tables for SQLite 3.35 or later. Each statement may be repeated: migrators do not wrap SQLite's in a transaction, so
-- one that was interrupted starts again.
--
-- Times are integers: microseconds since 1970-01-01 UTC (the clock itself has milliseconds). Use WAL and a `busy_timeout`.

-- One row per message that a consumer handled or failed to handle. `handled` is written in the transaction of the effect, the other states
-- outside of it. The primary key is the guarantee.
CREATE TABLE IF NOT EXISTS {prefix}inbox_messages (
    consumer     TEXT NOT NULL,
    message_id   BLOB NOT NULL,
    status       INTEGER NOT NULL,             -- 0 failed (will be tried again), 1 handled, 2 dead letter
    attempts     INTEGER NOT NULL,             -- failed ones, and those that were started again and left no result
    last_error   TEXT,
    processed_at INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,             -- may be deleted then: what is delivered later takes effect again
    PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;

-- What may be deleted.
CREATE INDEX IF NOT EXISTS {prefix}inbox_messages_expires_at ON {prefix}inbox_messages (expires_at);

-- What consumers gave up, as it was received. `id` is derived from what was delivered, so that a delivery after a crash adds no
-- second row.
CREATE TABLE IF NOT EXISTS {prefix}inbox_dead_letters (
    id         BLOB NOT NULL PRIMARY KEY,
    consumer   TEXT NOT NULL,
    message_id BLOB,                           -- null: no message of an outbox
    subject    TEXT NOT NULL,
    position   INTEGER NOT NULL,               -- in the stream
    headers    TEXT NOT NULL,                  -- array of [name, value]
    payload    BLOB NOT NULL,
    error      TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    created_at INTEGER NOT NULL
);

-- What is listed, in its order.
CREATE INDEX IF NOT EXISTS {prefix}inbox_dead_letters_consumer ON {prefix}inbox_dead_letters (consumer, created_at);
