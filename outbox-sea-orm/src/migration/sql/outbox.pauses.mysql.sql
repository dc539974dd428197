-- The pauses of publishing, which operators begin and end, and which relays read before they renew their leases: one row per aggregate type, and the empty
-- type for all messages. A pause that has ended keeps its row until the last of what it held is released.
CREATE TABLE IF NOT EXISTS {schema}{prefix}outbox_pauses (
    aggregate_type VARBINARY(64) NOT NULL COMMENT 'empty: all messages',
    reason         TEXT COLLATE utf8mb4_bin NOT NULL,
    paused_by      TEXT COLLATE utf8mb4_bin NOT NULL,
    paused_at      DATETIME(6) NOT NULL,
    ends_at        DATETIME(6) NULL COMMENT 'null: until an operator ends it',
    PRIMARY KEY (aggregate_type)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
