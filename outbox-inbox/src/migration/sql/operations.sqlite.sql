-- Audit log of changes by operators: operator, action, reason and progress. Rows are written in the transactions of the changes and never deleted automatically.
CREATE TABLE IF NOT EXISTS {prefix}inbox_operations (
    id           BLOB NOT NULL PRIMARY KEY,
    kind         TEXT NOT NULL,
    actor        TEXT NOT NULL,
    reason       TEXT,
    scope        TEXT NOT NULL,                -- what it is to take, as JSON
    messages     TEXT NOT NULL,                -- keys of the first dead letters that it took: 32 hexadecimal digits each
    last_row_id  INTEGER,                      -- not used here
    until_row_id INTEGER,                      -- not used here
    changed      INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    finished_at  INTEGER                       -- null: it runs, or broke off
);
