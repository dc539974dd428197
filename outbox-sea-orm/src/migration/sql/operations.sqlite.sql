-- Changes that operators have made: who, what, why, and how far each is. Rows are written in the transactions of the changes, and kept until somebody deletes them.
CREATE TABLE IF NOT EXISTS {prefix}outbox_operations (
    id           BLOB NOT NULL PRIMARY KEY,
    kind         TEXT NOT NULL,
    actor        TEXT NOT NULL,
    reason       TEXT,
    scope        TEXT NOT NULL,                -- what it is to take, as JSON
    messages     TEXT NOT NULL,                -- ids of the first messages that it took, or of the first copies: 32 hexadecimal digits each
    last_row_id  INTEGER,                      -- how far a change of many messages is
    until_row_id INTEGER,                      -- the last row that a replay may take
    changed      INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    finished_at  INTEGER                       -- null: it runs, or broke off
);
