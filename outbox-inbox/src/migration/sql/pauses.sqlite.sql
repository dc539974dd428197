-- Paused consumers. Their processes poll this table once a second.
CREATE TABLE IF NOT EXISTS {prefix}inbox_pauses (
    consumer  TEXT NOT NULL PRIMARY KEY,
    reason    TEXT NOT NULL,                   -- for people
    paused_at INTEGER NOT NULL
);
