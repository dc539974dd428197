-- Audit log of changes by operators: operator, action, reason and progress. Rows are written in the transactions of the changes and never deleted automatically.
CREATE TABLE IF NOT EXISTS {schema}{prefix}inbox_operations (
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
