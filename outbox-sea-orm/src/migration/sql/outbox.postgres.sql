-- Outbox tables for PostgreSQL 12 or later.

-- One row per message. `seq` orders messages of one aggregate as they were committed, because it is drawn while the aggregate's head row
-- is locked; it has holes and says nothing about the order of different aggregates. No index on `seq` alone: fetching must
-- walk the pending rows only, and with such an index the planner could walk the published ones as well. (aggregate, sequence) needs no
-- unique index either: the head row guarantees it.
CREATE TABLE {schema}{prefix}outbox_messages (
    seq            bigint GENERATED ALWAYS AS IDENTITY,
    id             uuid NOT NULL,
    partition_no   smallint NOT NULL CHECK (partition_no BETWEEN 0 AND 63),
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
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp() CHECK (isfinite(created_at)),
    available_at   timestamptz,                  -- null: at once
    attempts       integer NOT NULL DEFAULT 0,
    last_error     text,
    status         smallint NOT NULL DEFAULT 0,  -- 0 pending, 1 published, 2 parked
    published_at   timestamptz,
    CONSTRAINT {prefix}outbox_messages_id PRIMARY KEY (id)
) WITH (
    -- Every row is updated once, soon after it was inserted: vacuum by share of the table would come too late for a large one.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.02
);

-- Partial, so that rows without a key cost nothing.
CREATE UNIQUE INDEX {prefix}outbox_messages_dedup_key
    ON {schema}{prefix}outbox_messages (dedup_key) WHERE dedup_key IS NOT NULL;

-- What relays read, in their order. Its size is the backlog, not the history. The partition is checked inside the index.
CREATE INDEX {prefix}outbox_messages_pending
    ON {schema}{prefix}outbox_messages (seq, partition_no) WHERE status = 0;

-- Delayed rows, by aggregate: what a fetch must not overtake. Empty for who does not delay messages.
CREATE INDEX {prefix}outbox_messages_delayed
    ON {schema}{prefix}outbox_messages (aggregate_type, aggregate_id, seq)
    WHERE status = 0 AND available_at IS NOT NULL;

CREATE INDEX {prefix}outbox_messages_parked
    ON {schema}{prefix}outbox_messages (seq) WHERE status = 2;

-- The head row of each aggregate: its last sequence, and the message that halts it. Locked by whoever records a message until
-- commit; that lock is the order.
CREATE TABLE {schema}{prefix}outbox_aggregates (
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id   text COLLATE "C" NOT NULL,
    last_sequence  bigint NOT NULL,
    halted_by      bigint,                       -- seq of the parked message
    CONSTRAINT {prefix}outbox_aggregates_pk PRIMARY KEY (aggregate_type, aggregate_id)
) WITH (
    -- Room on the page, so that counting up stays a heap-only update.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05
);

CREATE INDEX {prefix}outbox_aggregates_halted
    ON {schema}{prefix}outbox_aggregates (aggregate_type, aggregate_id) WHERE halted_by IS NOT NULL;

-- Who relays which partition. `epoch` rises with each acquisition and fences off owners that were paused.
CREATE TABLE {schema}{prefix}outbox_leases (
    partition_no smallint NOT NULL,
    owner        uuid,
    epoch        bigint NOT NULL DEFAULT 0,
    expires_at   timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT {prefix}outbox_leases_pk PRIMARY KEY (partition_no)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200);

INSERT INTO {schema}{prefix}outbox_leases (partition_no) SELECT * FROM generate_series(0, 63);

-- Bytes as text for people. Never fails: what is not UTF-8 (or holds NUL) is shown escaped.
CREATE FUNCTION {schema}{prefix}outbox_readable(bytes bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(bytes, 'escape');
END
$$;

CREATE VIEW {schema}{prefix}outbox_messages_readable AS
SELECT seq, id,
       CASE status WHEN 0 THEN 'pending' WHEN 1 THEN 'published' WHEN 2 THEN 'parked' ELSE 'unknown' END AS status,
       aggregate_type, aggregate_id, sequence, event_type, event_version, subject,
       created_at, available_at, published_at, attempts, last_error,
       content_type, {schema}{prefix}outbox_readable(payload) AS payload, headers, dedup_key, partition_no
FROM {schema}{prefix}outbox_messages;
