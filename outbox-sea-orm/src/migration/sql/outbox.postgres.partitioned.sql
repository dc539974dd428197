-- Outbox tables for PostgreSQL 12 or later, with messages partitioned by day.

-- One row per message. `sequence` is the order within an aggregate. `row_id` is the order in which relays look for pending rows. It is drawn while the aggregate's head
-- row is locked, so it mostly has the same order. It has holes, and the server assigns a `row_id` again if its counter is set back. There is no index on `row_id` alone: with one, the
-- planner could read the published rows too, where a relay needs only the pending ones. (aggregate, sequence) needs no unique index: the
-- lock on the head row keeps it unique. `row_id` comes from a sequence, because identity columns of partitioned tables need PostgreSQL 17.
CREATE SEQUENCE {schema}{prefix}outbox_messages_row_ids;

CREATE TABLE {schema}{prefix}outbox_messages (
    row_id         bigint NOT NULL DEFAULT nextval('{schema}{prefix}outbox_messages_row_ids'::regclass),
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
    -- A unique index must contain the column of the day, so no index checks `id` alone. Ids are random enough to be unique.
    CONSTRAINT {prefix}outbox_messages_id PRIMARY KEY (id, created_at),
    -- One constraint, because each one costs a writer time. None bounds the names: relays check them.
    CHECK (partition_no BETWEEN 0 AND 63 AND isfinite(created_at))
) PARTITION BY RANGE (created_at);

ALTER SEQUENCE {schema}{prefix}outbox_messages_row_ids OWNED BY {schema}{prefix}outbox_messages.row_id;

-- Rows without a daily table: those that outlived their day because they are not published, and all rows while no relay makes daily tables.
CREATE TABLE {schema}{prefix}outbox_messages_default PARTITION OF {schema}{prefix}outbox_messages DEFAULT WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.02
);

-- Making a day finds through this index that no row of the day is here. Attaching the day reads the table once more; the server does so by itself.
CREATE INDEX {prefix}outbox_messages_default_day
    ON {schema}{prefix}outbox_messages_default (created_at);

-- Makes the table of a day (UTC) if it is missing, and returns whether it did. Relays call it each minute for today and three days ahead.
-- A day that already has rows in the default partition stays there; this happens when no relay has called for days. It locks the parent
-- against other DDL, but not against reads and writes, and then the default partition against everything. Statements take these locks in the
-- same order.
-- The function is bound to the schema of the tables and to pg_catalog. Objects of other schemas in a search_path have no effect.
DO $do$
BEGIN
    EXECUTE pg_catalog.replace($sql$
CREATE FUNCTION @outbox_make_day(day date) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO' SET TimeZone = 'UTC' AS $$
DECLARE
    begins timestamptz := day::timestamp AT TIME ZONE 'UTC';
    ends   timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
    name   text := '@outbox_messages_' || to_char(day, 'YYYYMMDD');
BEGIN
    FOR attempt IN 1 .. 2 LOOP
        IF to_regclass(name) IS NOT NULL OR EXISTS (
            SELECT FROM @outbox_messages_default WHERE created_at >= begins AND created_at < ends)
        THEN
            RETURN false;
        END IF;
        -- The check is repeated under the locks: before them, others may make the same table, and rows may arrive.
        LOCK TABLE ONLY @outbox_messages IN SHARE UPDATE EXCLUSIVE MODE;
        LOCK TABLE @outbox_messages_default IN ACCESS EXCLUSIVE MODE;
    END LOOP;
    EXECUTE 'CREATE TABLE ' || name || ' (LIKE @outbox_messages INCLUDING DEFAULTS INCLUDING CONSTRAINTS) WITH ('
        -- Every row is updated once, soon after its insert. The default (a fifth of the table) would start vacuum too late for a large table.
        'autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000, autovacuum_analyze_scale_factor = 0.02, '
        -- Keeps the empty pages that are made below.
        'vacuum_truncate = false)';
    -- Leaves a megabyte of empty pages. Without them the planner reads and sorts the whole table, and such a plan stays cached for a minute after
    -- midnight. The rows are rolled back, because a publication FOR ALL TABLES would send them, and would refuse to delete rows without a key.
    BEGIN
        EXECUTE 'INSERT INTO ' || name || ' (row_id, id, partition_no, aggregate_type, aggregate_id, event_type, event_version, content_type, '
            'payload, headers, created_at) SELECT 0, $1, 0, $2, $2, $2, 0, $2, $3, $4, $5 FROM generate_series(1, 1000)'
            USING uuid '00000000-0000-0000-0000-000000000000', ''::text, convert_to(repeat('x', 900), 'UTF8'), json '{}', begins;
        RAISE EXCEPTION USING ERRCODE = 'OB100';
    EXCEPTION WHEN SQLSTATE 'OB100' THEN
        NULL;
    END;
    EXECUTE format('ALTER TABLE @outbox_messages ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)',
                   name, begins, ends);
    RETURN true;
END
$$
    $sql$, '@', (SELECT pg_catalog.quote_ident(n.nspname) || '.{prefix}' FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                 WHERE c.oid = '{schema}{prefix}outbox_messages'::regclass::oid));
END
$do$;

SELECT {schema}{prefix}outbox_make_day((clock_timestamp() AT TIME ZONE 'UTC')::date + n) FROM generate_series(0, 3) AS n;

