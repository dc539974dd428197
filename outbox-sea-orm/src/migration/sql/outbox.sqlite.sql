-- Outbox tables for SQLite 3.35 or later. Each statement may be repeated, because migrators open no transaction on SQLite:
-- a migration that was interrupted starts again.
--
-- Times are integers: microseconds since 1970-01-01 UTC (the clock itself has milliseconds). Use WAL and a `busy_timeout`.

-- One row per message. `row_id` orders messages as they were committed, because SQLite has one writer at a time. AUTOINCREMENT never
-- gives the number of a deleted row again.
CREATE TABLE IF NOT EXISTS {prefix}outbox_messages (
    row_id         INTEGER PRIMARY KEY AUTOINCREMENT,
    id             BLOB NOT NULL,
    partition_no   INTEGER NOT NULL CHECK (partition_no BETWEEN 0 AND 63),
    aggregate_type TEXT NOT NULL CHECK (length(CAST(aggregate_type AS BLOB)) <= 64),
    aggregate_id   TEXT NOT NULL CHECK (length(CAST(aggregate_id AS BLOB)) <= 1020),
    sequence       INTEGER,
    event_type     TEXT NOT NULL CHECK (length(CAST(event_type AS BLOB)) <= 129),
    event_version  INTEGER NOT NULL,
    subject        TEXT CHECK (length(CAST(subject AS BLOB)) <= 1020),
    content_type   TEXT NOT NULL CHECK (length(CAST(content_type AS BLOB)) <= 1020),
    payload        BLOB NOT NULL,
    headers        TEXT NOT NULL,
    dedup_key      TEXT CHECK (length(CAST(dedup_key AS BLOB)) <= 1020),
    created_at     INTEGER NOT NULL,
    available_at   INTEGER,                     -- null: at once
    attempts       INTEGER NOT NULL DEFAULT 0,
    last_error     TEXT,
    status         INTEGER NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),  -- 0 pending, 1 published, 2 dead, 3 waiting
    published_at   INTEGER,
    failures       INTEGER NOT NULL DEFAULT 0,
    event_id       BLOB                         -- null: the same as id; set in replayed copies
);

CREATE UNIQUE INDEX IF NOT EXISTS {prefix}outbox_messages_id ON {prefix}outbox_messages (id);

-- Relays read pending rows through these, in this order: one that owns all partitions, and one that shares them with others. They are as large as
-- the backlog, not as the history.
CREATE INDEX IF NOT EXISTS {prefix}outbox_messages_pending
    ON {prefix}outbox_messages (row_id) WHERE status = 0;

CREATE INDEX IF NOT EXISTS {prefix}outbox_messages_pending_own
    ON {prefix}outbox_messages (partition_no, row_id) WHERE status = 0;

-- Three indexes of the waiting rows: by aggregate, to fetch them in order when a block has ended; by partition and time, for unsequenced rows;
-- by row id, to count them. All three are empty while nothing fails and nothing is delayed.
CREATE INDEX IF NOT EXISTS {prefix}outbox_messages_waiting
    ON {prefix}outbox_messages (aggregate_type, aggregate_id, row_id) WHERE status = 3 AND sequence IS NOT NULL;

CREATE INDEX IF NOT EXISTS {prefix}outbox_messages_waiting_until
    ON {prefix}outbox_messages (partition_no, available_at) WHERE status = 3 AND sequence IS NULL;

CREATE INDEX IF NOT EXISTS {prefix}outbox_messages_waiting_row_id
    ON {prefix}outbox_messages (row_id) WHERE status = 3;

CREATE INDEX IF NOT EXISTS {prefix}outbox_messages_dead ON {prefix}outbox_messages (row_id) WHERE status = 2;

-- The head row of each aggregate, with its last sequence.
CREATE TABLE IF NOT EXISTS {prefix}outbox_aggregates (
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    last_sequence  INTEGER NOT NULL,
    recorded_at    INTEGER NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id)
) WITHOUT ROWID;

-- The deduplication keys of messages. A key outlives its message, so that a save that is repeated later still finds out that it was stored.
CREATE TABLE IF NOT EXISTS {prefix}outbox_dedup_keys (
    dedup_key   TEXT NOT NULL,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (dedup_key)
) WITHOUT ROWID;

-- The purge reads the oldest keys through this index.
CREATE INDEX IF NOT EXISTS {prefix}outbox_dedup_keys_age
    ON {prefix}outbox_dedup_keys (recorded_at);

-- The blocked aggregates: until when, or by which dead letter if they are halted. While an aggregate has a row here, its messages wait (status 3),
-- and the scan of the pending rows passes over them. The row goes with the last waiting message.
CREATE TABLE IF NOT EXISTS {prefix}outbox_blocks (
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    partition_no   INTEGER NOT NULL,
    blocked_until  INTEGER,                     -- null: halted
    halted_by      INTEGER,                     -- row_id of the dead letter
    PRIMARY KEY (aggregate_type, aggregate_id),
    CHECK ((blocked_until IS NULL) = (halted_by IS NOT NULL))
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS {prefix}outbox_blocks_due
    ON {prefix}outbox_blocks (blocked_until) WHERE blocked_until IS NOT NULL;

CREATE INDEX IF NOT EXISTS {prefix}outbox_blocks_own
    ON {prefix}outbox_blocks (partition_no, blocked_until) WHERE blocked_until IS NOT NULL;

CREATE INDEX IF NOT EXISTS {prefix}outbox_blocks_halted
    ON {prefix}outbox_blocks (halted_by) WHERE halted_by IS NOT NULL;

-- The relay that owns each partition. `epoch` rises with each acquisition, so writes of an owner that was paused are refused.
CREATE TABLE IF NOT EXISTS {prefix}outbox_leases (
    partition_no INTEGER PRIMARY KEY,
    owner        BLOB,
    epoch        INTEGER NOT NULL DEFAULT 0,
    expires_at   INTEGER NOT NULL DEFAULT 0
);

WITH RECURSIVE partitions (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM partitions WHERE n < 63)
INSERT INTO {prefix}outbox_leases (partition_no) SELECT n FROM partitions WHERE true
ON CONFLICT DO NOTHING;

-- The relays that are alive. Their number decides how many partitions each may own. `fitness`: 0 healthy, 1 unknown, 2 recovering, 3 unhealthy.
-- `mode`: 0 polls the table, 1 reads the log. `retention_seconds`: 0 deletes messages when they are published, -1 keeps them.
-- `stream`, `subjects` and `source` say where the relay publishes; relays that differ in them do not start beside each other.
-- `error` is the present failure, which has lasted since `failing_since`.
CREATE TABLE IF NOT EXISTS {prefix}outbox_relays (
    owner             BLOB NOT NULL PRIMARY KEY,
    expires_at        INTEGER NOT NULL,
    fitness           INTEGER NOT NULL,
    name              TEXT,                  -- host and process id, unless the relay was given a name
    mode              INTEGER,
    stream            TEXT,
    subjects          TEXT,
    source            TEXT,
    retention_seconds INTEGER,
    version           TEXT,
    error_class       TEXT,
    error             TEXT,
    failing_since     INTEGER
);

-- For people. It never fails: a payload that is not JSON is shown in hexadecimal.
CREATE VIEW IF NOT EXISTS {prefix}outbox_messages_readable AS
SELECT row_id,
       lower(substr(hex(id), 1, 8) || '-' || substr(hex(id), 9, 4) || '-' || substr(hex(id), 13, 4) || '-' ||
             substr(hex(id), 17, 4) || '-' || substr(hex(id), 21)) AS id,
       lower(substr(hex(COALESCE(event_id, id)), 1, 8) || '-' || substr(hex(COALESCE(event_id, id)), 9, 4) || '-' ||
             substr(hex(COALESCE(event_id, id)), 13, 4) || '-' || substr(hex(COALESCE(event_id, id)), 17, 4) || '-' ||
             substr(hex(COALESCE(event_id, id)), 21)) AS event_id,
       CASE status WHEN 0 THEN 'pending' WHEN 1 THEN 'published' WHEN 2 THEN 'dead' WHEN 3 THEN 'waiting'
            ELSE 'unknown' END AS status,
       aggregate_type, aggregate_id, sequence, event_type, event_version, subject,
       strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', available_at / 1000000.0, 'unixepoch') AS available_at,
       strftime('%Y-%m-%d %H:%M:%f', published_at / 1000000.0, 'unixepoch') AS published_at,
       attempts, failures, last_error, content_type,
       CASE WHEN json_valid(CAST(payload AS TEXT)) THEN CAST(payload AS TEXT) ELSE hex(payload) END AS payload,
       headers, dedup_key, partition_no
FROM {prefix}outbox_messages;

-- Dead letters, with the reason of each.
CREATE VIEW IF NOT EXISTS {prefix}outbox_dead_letters AS
SELECT m.row_id,
       lower(substr(hex(m.id), 1, 8) || '-' || substr(hex(m.id), 9, 4) || '-' || substr(hex(m.id), 13, 4) || '-' ||
             substr(hex(m.id), 17, 4) || '-' || substr(hex(m.id), 21)) AS id,
       m.aggregate_type, m.aggregate_id, m.sequence, m.event_type, m.attempts, m.failures,
       m.last_error AS reason, h.aggregate_id IS NOT NULL AS halts,
       strftime('%Y-%m-%d %H:%M:%f', m.created_at / 1000000.0, 'unixepoch') AS created_at
FROM {prefix}outbox_messages m LEFT JOIN {prefix}outbox_blocks h ON h.halted_by = m.row_id
WHERE m.status = 2;

-- Aggregates whose messages wait. A halted aggregate waits for an operator.
CREATE VIEW IF NOT EXISTS {prefix}outbox_blocked AS
SELECT aggregate_type, aggregate_id, halted_by IS NOT NULL AS halted,
       strftime('%Y-%m-%d %H:%M:%f', blocked_until / 1000000.0, 'unixepoch') AS blocked_until, halted_by, partition_no
FROM {prefix}outbox_blocks;
