-- Inbox tables for MySQL 8.0.1 or later and MariaDB 10.6 or later. Each statement can be repeated: these databases cannot
-- roll back DDL, so an interrupted migration starts again.
--
-- Consumers are VARBINARY, because text collations treat `A` and `a` as equal. All times are UTC.

-- One row per message that a consumer handled or failed to handle. The transaction of the effect writes status 1 (handled). Other statuses are
-- written outside it. The primary key prevents duplicates: a concurrent duplicate waits for the row until the first transaction ends.
CREATE TABLE IF NOT EXISTS inbox_messages (
    consumer     VARBINARY(64) NOT NULL,
    id           BINARY(16) NOT NULL COMMENT 'of the event, or derived from its business key',
    status       SMALLINT NOT NULL COMMENT '0 failed (will be tried again), 1 handled, 2 dead letter',
    attempts     INT NOT NULL COMMENT 'those that failed, and repeated ones that left no result',
    last_error   TEXT COLLATE utf8mb4_bin NULL,
    processed_at DATETIME(6) NOT NULL,
    expires_at   DATETIME(6) NOT NULL COMMENT 'then the row may be deleted, and a later delivery takes effect again',
    PRIMARY KEY (consumer, id),
    -- Expired rows.
    KEY inbox_messages_expires_at (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Progress of a consumer in an aggregate (strategy `sequence`), written in the transaction of the effect, after its lock. Services number their
-- aggregates independently, so the source is part of the key. `last_event_id` and `last_recorded_at` distinguish a redelivered event from another
-- event with an applied number.
CREATE TABLE IF NOT EXISTS inbox_sequences (
    consumer       VARBINARY(64) NOT NULL,
    aggregate_type VARBINARY(64) NOT NULL,
    aggregate_id   VARBINARY(1020) NOT NULL,
    source         VARBINARY(1020) NOT NULL COMMENT 'the service that recorded the events (ce-source)',
    last_sequence  BIGINT NOT NULL COMMENT 'this one and all before it are done, except the missing ones',
    last_event_id  BINARY(16) NULL COMMENT 'of the event with that number; null: nothing is done yet',
    last_recorded_at BIGINT NOT NULL COMMENT 'when the latest of the done events was recorded: microseconds since 1970, 0 if nothing is done',
    failing        BIGINT NULL COMMENT 'a later one that has failed and is tried again: those after it wait for it',
    missing        TEXT COLLATE utf8mb4_bin NULL COMMENT 'numbers that were not waited for any longer: JSON array of [first, last]',
    updated_at     DATETIME(6) NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id, source)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Messages that consumers could not handle, as received. `id` is derived from the delivery, so that a redelivery after a crash adds no second row.
CREATE TABLE IF NOT EXISTS inbox_dead_letters (
    id             BINARY(16) NOT NULL,
    consumer       VARBINARY(64) NOT NULL,
    event_id       BINARY(16) NULL COMMENT 'this and the next five are null if it is no message of an outbox',
    event_type     VARBINARY(129) NULL,
    aggregate_type VARBINARY(64) NULL,
    aggregate_id   VARBINARY(1020) NULL,
    sequence       BIGINT NULL COMMENT 'also null if unsequenced',
    source         VARBINARY(1020) NULL COMMENT 'the service that gave the sequence (ce-source); null without one',
    subject        TEXT COLLATE utf8mb4_bin NOT NULL,
    stream_sequence BIGINT NOT NULL COMMENT 'given by the stream',
    headers        LONGTEXT COLLATE utf8mb4_bin NOT NULL COMMENT 'array of [name, value]',
    payload        LONGBLOB NOT NULL,
    error          TEXT COLLATE utf8mb4_bin NOT NULL,
    attempts       INT NOT NULL,
    status         SMALLINT NOT NULL COMMENT '0 open, 1 to be tried again',
    created_at     DATETIME(6) NOT NULL,
    PRIMARY KEY (id),
    -- Order of lists.
    KEY inbox_dead_letters_consumer (consumer, created_at),
    -- Dead letters marked for retry, in stream order.
    KEY inbox_dead_letters_retry (consumer, status, stream_sequence),
    -- Marked dead letters of an aggregate, by sequence.
    KEY inbox_dead_letters_of_aggregate (consumer, status, aggregate_type, aggregate_id, source, sequence, stream_sequence)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- View for operators: dead letters with payloads as text. A payload that is not UTF-8 is shown in hexadecimal.
CREATE OR REPLACE VIEW inbox_dead_letters_readable AS
SELECT LOWER(CONCAT(SUBSTR(HEX(id), 1, 8), '-', SUBSTR(HEX(id), 9, 4), '-', SUBSTR(HEX(id), 13, 4), '-',
                    SUBSTR(HEX(id), 17, 4), '-', SUBSTR(HEX(id), 21))) AS id,
       CONVERT(consumer USING utf8mb4) AS consumer,
       LOWER(CONCAT(SUBSTR(HEX(event_id), 1, 8), '-', SUBSTR(HEX(event_id), 9, 4), '-', SUBSTR(HEX(event_id), 13, 4), '-',
                    SUBSTR(HEX(event_id), 17, 4), '-', SUBSTR(HEX(event_id), 21))) AS event_id,
       CONVERT(event_type USING utf8mb4) AS event_type, CONVERT(aggregate_type USING utf8mb4) AS aggregate_type,
       CONVERT(aggregate_id USING utf8mb4) AS aggregate_id, sequence, error AS reason, attempts,
       CASE status WHEN 0 THEN 'open' WHEN 1 THEN 'to be tried again' ELSE 'unknown' END AS status,
       created_at, subject, stream_sequence, headers,
       CASE WHEN HEX(CONVERT(payload USING utf8mb4)) = HEX(payload) THEN CONVERT(payload USING utf8mb4)
            ELSE CONVERT(HEX(payload) USING utf8mb4) END AS payload
FROM inbox_dead_letters;

-- One row per HTTP request with an idempotency key, written in the transaction of its effect, with the response for retries. `id` is the hash of
-- tenant, principal and key. The columns with these names are for display and may be shortened. The primary key prevents duplicates.
CREATE TABLE IF NOT EXISTS inbox_requests (
    id              BINARY(32) NOT NULL,
    tenant          VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    principal       VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    idempotency_key VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    route           VARCHAR(255) COLLATE utf8mb4_bin NOT NULL COMMENT 'method and path',
    fingerprint     BINARY(32) NOT NULL COMMENT 'hash of method, path, query, content type and body',
    status          SMALLINT NULL COMMENT 'null: inside the transaction only',
    headers         LONGTEXT COLLATE utf8mb4_bin NULL COMMENT 'array of [name, value], a character per byte (ISO 8859-1)',
    body            LONGBLOB NULL,
    created_at      DATETIME(6) NOT NULL,
    expires_at      DATETIME(6) NOT NULL COMMENT 'then the row may be deleted, and the key used again',
    PRIMARY KEY (id),
    -- Expired rows.
    KEY inbox_requests_expires_at (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Paused consumers. Their processes poll this table once a second.
CREATE TABLE IF NOT EXISTS inbox_pauses (
    consumer  VARBINARY(64) NOT NULL,
    reason    TEXT COLLATE utf8mb4_bin NOT NULL COMMENT 'for people',
    paused_at DATETIME(6) NOT NULL,
    PRIMARY KEY (consumer)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Audit log of changes by operators: operator, action, reason and progress. Rows are written in the transactions of the changes and never deleted automatically.
CREATE TABLE IF NOT EXISTS inbox_operations (
    id           BINARY(16) NOT NULL,
    kind         VARCHAR(64) NOT NULL,
    actor        TEXT COLLATE utf8mb4_bin NOT NULL,
    reason       TEXT COLLATE utf8mb4_bin NULL,
    scope        MEDIUMTEXT COLLATE utf8mb4_bin NOT NULL COMMENT 'what it is to take, as JSON',
    messages     MEDIUMTEXT COLLATE utf8mb4_bin NOT NULL COMMENT 'keys of the first dead letters that it took: 32 hexadecimal digits each',
    last_row_id  BIGINT NULL COMMENT 'not used here',
    until_row_id BIGINT NULL COMMENT 'not used here',
    changed      BIGINT NOT NULL,
    started_at   DATETIME(6) NOT NULL,
    finished_at  DATETIME(6) NULL COMMENT 'null: it runs, or broke off',
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Applied migrations, as recorded by `migrate`.
CREATE TABLE IF NOT EXISTS inbox_migrations (version varchar(255) NOT NULL PRIMARY KEY, applied_at bigint NOT NULL) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT INTO inbox_migrations (version, applied_at) VALUES ('inbox_0001_create_tables', UNIX_TIMESTAMP()) ON DUPLICATE KEY UPDATE version = version;

INSERT INTO inbox_migrations (version, applied_at) VALUES ('inbox_0002_pauses', UNIX_TIMESTAMP()) ON DUPLICATE KEY UPDATE version = version;

INSERT INTO inbox_migrations (version, applied_at) VALUES ('inbox_0003_create_operations', UNIX_TIMESTAMP()) ON DUPLICATE KEY UPDATE version = version;
