-- Inbox tables for MySQL 8.0.1 or later and MariaDB 10.6 or later. Each statement may be repeated: these databases cannot roll DDL back,
-- so a migration that was interrupted starts again.
--
-- Consumers are VARBINARY: text collations call `A` and `a` equal. All times are UTC.

-- One row per message that a consumer handled or failed to handle. `handled` is written in the transaction of the effect, the other states
-- outside of it. The primary key is the guarantee; waiting for a row of it is how concurrent duplicates find out.
CREATE TABLE IF NOT EXISTS inbox_messages (
    consumer     VARBINARY(64) NOT NULL,
    message_id   BINARY(16) NOT NULL,
    status       SMALLINT NOT NULL COMMENT '0 failed (will be tried again), 1 handled, 2 dead letter',
    attempts     INT NOT NULL COMMENT 'failed ones, and those that were started again and left no result',
    last_error   TEXT COLLATE utf8mb4_bin NULL,
    processed_at DATETIME(6) NOT NULL,
    expires_at   DATETIME(6) NOT NULL COMMENT 'may be deleted then: what is delivered later takes effect again',
    PRIMARY KEY (consumer, message_id),
    -- What may be deleted.
    KEY inbox_messages_expires_at (expires_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What consumers gave up, as it was received. `id` is derived from what was delivered, so that a delivery after a crash adds no
-- second row.
CREATE TABLE IF NOT EXISTS inbox_dead_letters (
    id         BINARY(16) NOT NULL,
    consumer   VARBINARY(64) NOT NULL,
    message_id BINARY(16) NULL COMMENT 'null: no message of an outbox',
    subject    TEXT COLLATE utf8mb4_bin NOT NULL,
    position   BIGINT NOT NULL COMMENT 'in the stream',
    headers    LONGTEXT COLLATE utf8mb4_bin NOT NULL COMMENT 'array of [name, value]',
    payload    LONGBLOB NOT NULL,
    error      TEXT COLLATE utf8mb4_bin NOT NULL,
    attempts   INT NOT NULL,
    created_at DATETIME(6) NOT NULL,
    PRIMARY KEY (id),
    -- What is listed, in its order.
    KEY inbox_dead_letters_consumer (consumer, created_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
