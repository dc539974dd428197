-- Paused consumers. Their processes poll this table once a second.
CREATE TABLE IF NOT EXISTS {schema}{prefix}inbox_pauses (
    consumer  VARBINARY(64) NOT NULL,
    reason    TEXT COLLATE utf8mb4_bin NOT NULL COMMENT 'for people',
    paused_at DATETIME(6) NOT NULL,
    PRIMARY KEY (consumer)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
