-- Changes that operators have made: who, what, why, and how far each is. Rows are written in the transactions of the changes, and kept until somebody deletes them.
CREATE TABLE IF NOT EXISTS {schema}{prefix}outbox_operations (
    id           BINARY(16) NOT NULL,
    kind         VARCHAR(64) NOT NULL,
    actor        TEXT COLLATE utf8mb4_bin NOT NULL,
    reason       TEXT COLLATE utf8mb4_bin NULL,
    scope        MEDIUMTEXT COLLATE utf8mb4_bin NOT NULL COMMENT 'what it is to take, as JSON',
    messages     MEDIUMTEXT COLLATE utf8mb4_bin NOT NULL COMMENT 'ids of the first messages that it took, or of the first copies: 32 hexadecimal digits each',
    last_row_id  BIGINT NULL COMMENT 'how far a change of many messages is',
    until_row_id BIGINT NULL COMMENT 'the last row that a replay may take',
    changed      BIGINT NOT NULL,
    started_at   DATETIME(6) NOT NULL,
    finished_at  DATETIME(6) NULL COMMENT 'null: it runs, or broke off',
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
