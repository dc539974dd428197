-- Outbox tables for PostgreSQL 12 or later.

-- One row per message. `sequence` is the order within an aggregate. `row_id` is the order in which relays look for pending rows. It is drawn while the aggregate's head
-- row is locked, so it mostly has the same order. It has holes, and the server assigns a `row_id` again if its counter is set back. There is no index on `row_id` alone: with one, the
-- planner could read the published rows too, where a relay needs only the pending ones. (aggregate, sequence) needs no unique index: the
-- lock on the head row keeps it unique.
CREATE TABLE {schema}{prefix}outbox_messages (
    row_id         bigint GENERATED ALWAYS AS IDENTITY,
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

