-- Outbox tables for PostgreSQL 12 or later.

-- One row per message. `sequence` is the order within an aggregate. `row_id` is the order in which relays look for pending rows. Writers take it from
-- the aggregate's head row, so both orders agree within an aggregate. It has holes, and two aggregates may share a `row_id` if the sequence was set back. There is no index
-- on `row_id` alone: with one, the planner could read the published rows too, where a relay needs only the pending ones. (aggregate, sequence) needs no
-- unique index: the lock on the head row keeps it unique. A value of the sequence stands for 10,000 row ids, so a statement draws once.
CREATE TABLE {schema}{prefix}outbox_messages (
    row_id         bigint GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME {schema}{prefix}outbox_row_ids INCREMENT BY 10000),
    id             uuid NOT NULL,
    partition_no   smallint NOT NULL,
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id   text COLLATE "C" NOT NULL,
    sequence       bigint,
    event_type     text COLLATE "C" NOT NULL,
    event_version  bigint NOT NULL,
    subject        text,
    content_type   text NOT NULL,
    payload        bytea NOT NULL,
    headers        json NOT NULL,
    dedup_key      text COLLATE "C",
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    available_at   timestamptz,                  -- null: at once
    attempts       integer NOT NULL DEFAULT 0,
    last_error     text,
    status         smallint NOT NULL DEFAULT 0,  -- 0 pending, 1 published, 2 dead, 3 waiting, 4 logged: recorded for the log relay
    published_at   timestamptz,
    failures       integer NOT NULL DEFAULT 0,
    event_id       uuid,                         -- null: the same as id; set in replayed copies
    CONSTRAINT {prefix}outbox_messages_id PRIMARY KEY (id),
    -- One constraint, because each one costs a writer time. None bounds the names: relays check them.
    CHECK (partition_no BETWEEN 0 AND 63 AND isfinite(created_at))
) WITH (
    -- Every row is updated once, soon after its insert. The default (a fifth of the table) would start vacuum too late for a large table.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.02
);

-- A relay that owns all partitions reads pending rows through this index, in this order, and settles them through it. It is as large as the
-- backlog, not as the history.
CREATE INDEX {prefix}outbox_messages_pending
    ON {schema}{prefix}outbox_messages (row_id) WHERE status = 0;

-- A relay that shares the partitions with others reads pending rows through this index. Its predicate means the same in other words, so each
-- query chooses between the two indexes by the words that it uses.
CREATE INDEX {prefix}outbox_messages_pending_own
    ON {schema}{prefix}outbox_messages (partition_no, row_id) WHERE status::int4 = 0;

-- Three indexes of the waiting rows: by aggregate, to fetch them in order when a block has ended; by partition and time, for unsequenced rows;
-- by row id, to settle them. All three are empty while nothing fails and nothing is delayed, which is what the statistics say then: an empty index looks
-- as good as any other. So their predicates differ in their words as well.
CREATE INDEX {prefix}outbox_messages_waiting
    ON {schema}{prefix}outbox_messages (aggregate_type, aggregate_id, row_id) WHERE status::int8 = 3 AND sequence IS NOT NULL;

CREATE INDEX {prefix}outbox_messages_waiting_until
    ON {schema}{prefix}outbox_messages (partition_no, available_at) WHERE status::int4 = 3 AND sequence IS NULL;

CREATE INDEX {prefix}outbox_messages_waiting_row_id
    ON {schema}{prefix}outbox_messages (row_id) WHERE status = 3;

CREATE INDEX {prefix}outbox_messages_dead
    ON {schema}{prefix}outbox_messages (row_id) WHERE status = 2;

-- The head row of each aggregate, with its last sequence and row id. A transaction that records a message locks it until the commit. This lock makes the order
-- of the messages.
CREATE TABLE {schema}{prefix}outbox_aggregates (
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id   text COLLATE "C" NOT NULL,
    last_sequence  bigint NOT NULL,
    last_row_id    bigint NOT NULL,
    recorded_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT {prefix}outbox_aggregates_pk PRIMARY KEY (aggregate_type, aggregate_id)
) WITH (
    -- Room on the page, so that counting up stays a heap-only update.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05
);

-- The deduplication keys of messages. A key outlives its message, so that a save that is repeated later still finds out that it was stored.
CREATE TABLE {schema}{prefix}outbox_dedup_keys (
    dedup_key   text COLLATE "C" NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT {prefix}outbox_dedup_keys_pk PRIMARY KEY (dedup_key)
);

-- The purge reads the oldest keys through this index.
CREATE INDEX {prefix}outbox_dedup_keys_age
    ON {schema}{prefix}outbox_dedup_keys (recorded_at);

-- The blocked aggregates: until when, or by which dead letter if they are halted. While an aggregate has a row here, its messages wait (status 3),
-- and the scan of the pending rows passes over them. The row goes with the last waiting message. These are no columns of the head row, because business
-- transactions keep head rows locked until they commit, and settling must not wait for them.
CREATE TABLE {schema}{prefix}outbox_blocks (
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id   text COLLATE "C" NOT NULL,
    partition_no   smallint NOT NULL,
    blocked_until  timestamptz,                  -- null: halted
    halted_by      bigint,                       -- row_id of the dead letter
    CONSTRAINT {prefix}outbox_blocks_pk PRIMARY KEY (aggregate_type, aggregate_id),
    CHECK ((blocked_until IS NULL) = (halted_by IS NOT NULL))
) WITH (
    -- Rows come and go in bursts.
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.1,
    -- Keeps the empty pages that are made below.
    vacuum_truncate = false
);

-- Leaves some empty pages. Without them the planner reads the whole table for each look-up, and such a plan stays cached for a minute after a burst
-- of 10,000 blocks: a fetch then takes half a second (measured) instead of 2 ms.
INSERT INTO {schema}{prefix}outbox_blocks (aggregate_type, aggregate_id, partition_no, blocked_until)
SELECT '', repeat('x'::text, 900) || n::text, 0, clock_timestamp() FROM generate_series(1, 100) AS n;
DELETE FROM {schema}{prefix}outbox_blocks;

-- Blocks in the order in which they end: for a relay that owns all partitions, and for one that shares them. A query chooses the first by saying that the
-- partition is not negative. The second could not be told from it otherwise while the statistics say that there are no blocks, as they do before each burst.
CREATE INDEX {prefix}outbox_blocks_due
    ON {schema}{prefix}outbox_blocks (blocked_until) WHERE blocked_until IS NOT NULL AND partition_no >= 0;

CREATE INDEX {prefix}outbox_blocks_own
    ON {schema}{prefix}outbox_blocks (partition_no, blocked_until) WHERE blocked_until IS NOT NULL;

-- Since ANALYZE the planner expects one block in a partition that it does not know beforehand, so that it searches the index and does not read the table. From true
-- statistics it may expect thousands in a partition that has two.
ALTER TABLE {schema}{prefix}outbox_blocks ALTER COLUMN partition_no SET (n_distinct = -1);

CREATE INDEX {prefix}outbox_blocks_halted
    ON {schema}{prefix}outbox_blocks (halted_by) WHERE halted_by IS NOT NULL;

-- The relay that owns each partition. `epoch` rises with each acquisition, so writes of an owner that was paused are refused.
CREATE TABLE {schema}{prefix}outbox_leases (
    partition_no smallint NOT NULL,
    owner        uuid,
    epoch        bigint NOT NULL DEFAULT 0,
    expires_at   timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT {prefix}outbox_leases_pk PRIMARY KEY (partition_no)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200);

INSERT INTO {schema}{prefix}outbox_leases (partition_no) SELECT * FROM generate_series(0, 63);

-- The relays that are alive. Their number decides how many partitions each may own. `fitness`: 0 healthy, 1 unknown, 2 recovering, 3 unhealthy.
-- `mode`: 0 polls the table, 1 reads the log. `retention_seconds`: 0 deletes messages when they are published, -1 keeps them.
-- `stream`, `subjects` and `source` say where the relay publishes; relays that differ in them do not start beside each other.
-- `error` is the present failure, which has lasted since `failing_since`.
CREATE TABLE {schema}{prefix}outbox_relays (
    owner             uuid NOT NULL,
    expires_at        timestamptz NOT NULL,
    fitness           smallint NOT NULL,
    name              text,                      -- host and process id, unless the relay was given a name
    mode              smallint,
    stream            text,
    subjects          text,
    source            text,
    retention_seconds bigint,
    version           text,
    error_class       text,
    error             text,
    failing_since     timestamptz,
    CONSTRAINT {prefix}outbox_relays_pk PRIMARY KEY (owner)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200);

-- Bytes as text for people. It never fails: bytes that are not UTF-8, or hold NUL, are shown escaped.
CREATE FUNCTION {schema}{prefix}outbox_readable(bytes bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(bytes, 'escape');
END
$$;

CREATE VIEW {schema}{prefix}outbox_messages_readable AS
SELECT row_id, id, COALESCE(event_id, id) AS event_id,
       CASE status WHEN 0 THEN 'pending' WHEN 1 THEN 'published' WHEN 2 THEN 'dead' WHEN 3 THEN 'waiting'
            WHEN 4 THEN 'logged' ELSE 'unknown' END AS status,
       aggregate_type, aggregate_id, sequence, event_type, event_version, subject,
       created_at, available_at, published_at, attempts, failures, last_error,
       content_type, {schema}{prefix}outbox_readable(payload) AS payload, headers, dedup_key, partition_no
FROM {schema}{prefix}outbox_messages;

-- Dead letters, with the reason of each.
CREATE VIEW {schema}{prefix}outbox_dead_letters AS
SELECT m.row_id, m.id, m.aggregate_type, m.aggregate_id, m.sequence, m.event_type, m.attempts, m.failures, m.last_error AS reason,
       h.aggregate_id IS NOT NULL AS halts, m.created_at
FROM {schema}{prefix}outbox_messages m LEFT JOIN {schema}{prefix}outbox_blocks h ON h.halted_by = m.row_id
WHERE m.status = 2;

-- Aggregates whose messages wait. A halted aggregate waits for an operator.
CREATE VIEW {schema}{prefix}outbox_blocked AS
SELECT aggregate_type, aggregate_id, halted_by IS NOT NULL AS halted, blocked_until, halted_by, partition_no
FROM {schema}{prefix}outbox_blocks;
