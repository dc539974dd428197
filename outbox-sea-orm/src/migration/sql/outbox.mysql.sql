-- Outbox tables for MySQL 8.0.1 or later and MariaDB 10.6 or later. Each statement may be repeated, because these databases
-- cannot roll back DDL: a migration that was interrupted starts again.
--
-- Aggregate and deduplication keys are VARBINARY: text collations call `Ab1` and `aB1` equal, and even utf8mb4_bin ignores
-- trailing spaces. All times are UTC.

-- One row per message. `row_id` orders messages of one aggregate as they were committed, because it is drawn while the aggregate's head row
-- is locked; it has holes and says nothing about the order of different aggregates. With several writable Galera nodes
-- it would not: write to one. (aggregate, sequence) needs no unique index: the head row guarantees it.
CREATE TABLE IF NOT EXISTS {schema}{prefix}outbox_messages (
    row_id         BIGINT NOT NULL AUTO_INCREMENT,
    id             BINARY(16) NOT NULL,
    partition_no   SMALLINT NOT NULL CHECK (partition_no BETWEEN 0 AND 63),
    aggregate_type VARBINARY(64) NOT NULL,
    aggregate_id   VARBINARY(1020) NOT NULL,
    sequence       BIGINT NULL,
    event_type     VARCHAR(129) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    event_version  BIGINT NOT NULL,
    subject        VARCHAR(255) COLLATE utf8mb4_bin NULL,
    content_type   VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    payload        LONGBLOB NOT NULL,
    headers        MEDIUMTEXT COLLATE utf8mb4_bin NOT NULL,
    dedup_key      VARBINARY(1020) NULL,
    created_at     DATETIME(6) NOT NULL,
    available_at   DATETIME(6) NULL COMMENT 'null: at once',
    attempts       INT NOT NULL DEFAULT 0,
    last_error     TEXT COLLATE utf8mb4_bin NULL,
    status         SMALLINT NOT NULL DEFAULT 0 COMMENT '0 pending, 1 published, 2 dead, 3 waiting' CHECK (status BETWEEN 0 AND 3),
    published_at   DATETIME(6) NULL,
    failures       INT NOT NULL DEFAULT 0,
    event_id       BINARY(16) NULL COMMENT 'null: the same as id; set in replayed copies',
    -- Both columns are null except in waiting rows, which keeps their index narrow, and untouched when an ordinary row is settled. The first holds
    -- the aggregate, or for an unsequenced row its partition and a byte 1. The second holds the time of an unsequenced row.
    waiting_key    VARBINARY(1085) GENERATED ALWAYS AS
        (IF(status = 3, IF(sequence IS NULL, CHAR(partition_no + 1), CONCAT(aggregate_type, x'00', aggregate_id)), NULL)) STORED,
    waiting_until  DATETIME(6) GENERATED ALWAYS AS (IF(status = 3 AND sequence IS NULL, available_at, NULL)) STORED,
    PRIMARY KEY (row_id),
    UNIQUE KEY outbox_messages_id (id),
    -- Relays read pending rows through these, in this order: one that owns all partitions, and one that shares them. There are no partial indexes.
    KEY outbox_messages_status (status, row_id),
    KEY outbox_messages_status_own (status, partition_no, row_id),
    -- Waiting rows: by aggregate, to fetch them in order when a block has ended, and unsequenced rows by their own time.
    KEY outbox_messages_waiting (waiting_key, waiting_until, row_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The head row of each aggregate, with its last sequence. A transaction that records a message locks it until the commit. This lock makes the order
-- of the messages.
CREATE TABLE IF NOT EXISTS {schema}{prefix}outbox_aggregates (
    aggregate_type VARBINARY(64) NOT NULL,
    aggregate_id   VARBINARY(1020) NOT NULL,
    last_sequence  BIGINT NOT NULL,
    recorded_at    DATETIME(6) NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The deduplication keys of messages. A key outlives its message, so that a save that is repeated later still finds out that it was stored.
CREATE TABLE IF NOT EXISTS {schema}{prefix}outbox_dedup_keys (
    dedup_key   VARBINARY(1020) NOT NULL,
    recorded_at DATETIME(6) NOT NULL,
    PRIMARY KEY (dedup_key),
    -- The purge reads the oldest keys through this index.
    KEY outbox_dedup_keys_age (recorded_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The blocked aggregates: until when, or by which dead letter if they are halted. While an aggregate has a row here, its messages wait (status 3),
-- and the scan of the pending rows passes over them. The row goes with the last waiting message. These are no columns of the head row, because business
-- transactions keep head rows locked until they commit, and settling must not wait for them.
CREATE TABLE IF NOT EXISTS {schema}{prefix}outbox_blocks (
    aggregate_type VARBINARY(64) NOT NULL,
    aggregate_id   VARBINARY(1020) NOT NULL,
    partition_no   SMALLINT NOT NULL,
    blocked_until  DATETIME(6) NULL COMMENT 'null: halted',
    halted_by      BIGINT NULL COMMENT 'row_id of the dead letter',
    PRIMARY KEY (aggregate_type, aggregate_id),
    KEY outbox_blocks_due (blocked_until),
    KEY outbox_blocks_own (partition_no, blocked_until),
    KEY outbox_blocks_halted (halted_by),
    CHECK ((blocked_until IS NULL) = (halted_by IS NOT NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The relay that owns each partition. `epoch` rises with each acquisition, so writes of an owner that was paused are refused.
CREATE TABLE IF NOT EXISTS {schema}{prefix}outbox_leases (
    partition_no SMALLINT NOT NULL,
    owner        BINARY(16) NULL,
    epoch        BIGINT NOT NULL DEFAULT 0,
    expires_at   DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
    PRIMARY KEY (partition_no)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT INTO {schema}{prefix}outbox_leases (partition_no) VALUES
    (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15),
    (16), (17), (18), (19), (20), (21), (22), (23), (24), (25), (26), (27), (28), (29), (30), (31),
    (32), (33), (34), (35), (36), (37), (38), (39), (40), (41), (42), (43), (44), (45), (46), (47),
    (48), (49), (50), (51), (52), (53), (54), (55), (56), (57), (58), (59), (60), (61), (62), (63)
ON DUPLICATE KEY UPDATE epoch = epoch;

-- The relays that are alive. Their number decides how many partitions each may own. `fitness`: 0 healthy, 1 unknown, 2 recovering, 3 unhealthy.
-- `mode`: 0 polls the table, 1 reads the log. `retention_seconds`: 0 deletes messages when they are published, -1 keeps them.
-- `stream`, `subjects` and `source` say where the relay publishes; relays that differ in them do not start beside each other.
-- `error` is the present failure, which has lasted since `failing_since`.
CREATE TABLE IF NOT EXISTS {schema}{prefix}outbox_relays (
    owner             BINARY(16) NOT NULL,
    expires_at        DATETIME(6) NOT NULL,
    fitness           TINYINT NOT NULL,
    name              VARCHAR(128) COLLATE utf8mb4_bin NULL COMMENT 'host and process id, unless the relay was given a name',
    mode              TINYINT NULL,
    stream            VARBINARY(255) NULL,
    subjects          VARBINARY(255) NULL,
    source            VARBINARY(255) NULL,
    retention_seconds BIGINT NULL,
    version           VARCHAR(64) COLLATE utf8mb4_bin NULL,
    error_class       VARCHAR(32) COLLATE utf8mb4_bin NULL,
    error             TEXT COLLATE utf8mb4_bin NULL,
    failing_since     DATETIME(6) NULL,
    PRIMARY KEY (owner)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- For people. It never fails: a payload that is not UTF-8 is shown in hexadecimal.
CREATE OR REPLACE VIEW {schema}{prefix}outbox_messages_readable AS
SELECT row_id,
       LOWER(CONCAT(SUBSTR(HEX(id), 1, 8), '-', SUBSTR(HEX(id), 9, 4), '-', SUBSTR(HEX(id), 13, 4), '-',
                    SUBSTR(HEX(id), 17, 4), '-', SUBSTR(HEX(id), 21))) AS id,
       LOWER(CONCAT(SUBSTR(HEX(COALESCE(event_id, id)), 1, 8), '-', SUBSTR(HEX(COALESCE(event_id, id)), 9, 4), '-',
                    SUBSTR(HEX(COALESCE(event_id, id)), 13, 4), '-', SUBSTR(HEX(COALESCE(event_id, id)), 17, 4), '-',
                    SUBSTR(HEX(COALESCE(event_id, id)), 21))) AS event_id,
       CASE status WHEN 0 THEN 'pending' WHEN 1 THEN 'published' WHEN 2 THEN 'dead' WHEN 3 THEN 'waiting'
            ELSE 'unknown' END AS status,
       CONVERT(aggregate_type USING utf8mb4) AS aggregate_type, CONVERT(aggregate_id USING utf8mb4) AS aggregate_id,
       sequence, event_type, event_version, subject,
       created_at, available_at, published_at, attempts, failures, last_error, content_type,
       CASE WHEN HEX(CONVERT(payload USING utf8mb4)) = HEX(payload) THEN CONVERT(payload USING utf8mb4)
            ELSE CONVERT(HEX(payload) USING utf8mb4) END AS payload,
       headers, CONVERT(dedup_key USING utf8mb4) AS dedup_key, partition_no
FROM {schema}{prefix}outbox_messages;

-- Dead letters, with the reason of each.
CREATE OR REPLACE VIEW {schema}{prefix}outbox_dead_letters AS
SELECT m.row_id,
       LOWER(CONCAT(SUBSTR(HEX(m.id), 1, 8), '-', SUBSTR(HEX(m.id), 9, 4), '-', SUBSTR(HEX(m.id), 13, 4), '-',
                    SUBSTR(HEX(m.id), 17, 4), '-', SUBSTR(HEX(m.id), 21))) AS id,
       CONVERT(m.aggregate_type USING utf8mb4) AS aggregate_type, CONVERT(m.aggregate_id USING utf8mb4) AS aggregate_id,
       m.sequence, m.event_type, m.attempts, m.failures, m.last_error AS reason, h.halted_by IS NOT NULL AS halts, m.created_at
FROM {schema}{prefix}outbox_messages m LEFT JOIN {schema}{prefix}outbox_blocks h ON h.halted_by = m.row_id
WHERE m.status = 2;

-- Aggregates whose messages wait. A halted aggregate waits for an operator.
CREATE OR REPLACE VIEW {schema}{prefix}outbox_blocked AS
SELECT CONVERT(aggregate_type USING utf8mb4) AS aggregate_type, CONVERT(aggregate_id USING utf8mb4) AS aggregate_id,
       halted_by IS NOT NULL AS halted, blocked_until, halted_by, partition_no
FROM {schema}{prefix}outbox_blocks;
