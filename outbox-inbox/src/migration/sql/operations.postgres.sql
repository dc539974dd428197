-- Audit log of changes by operators: operator, action, reason and progress. Rows are written in the transactions of the changes and never deleted automatically.
CREATE TABLE {schema}{prefix}inbox_operations (
    id           uuid NOT NULL,
    kind         text NOT NULL,
    actor        text NOT NULL,
    reason       text,
    scope        text NOT NULL,                -- what it is to take, as JSON
    messages     text NOT NULL,                -- keys of the first dead letters that it took: 32 hexadecimal digits each
    last_row_id  bigint,                       -- not used here
    until_row_id bigint,                       -- not used here
    changed      bigint NOT NULL,
    started_at   timestamptz NOT NULL,
    finished_at  timestamptz,                  -- null: it runs, or broke off
    CONSTRAINT {prefix}inbox_operations_pk PRIMARY KEY (id)
);
