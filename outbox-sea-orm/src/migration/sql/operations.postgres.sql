-- Changes that operators have made: who, what, why, and how far each is. Rows are written in the transactions of the changes, and kept until somebody deletes them.
CREATE TABLE {schema}{prefix}outbox_operations (
    id           uuid NOT NULL,
    kind         text NOT NULL,
    actor        text NOT NULL,
    reason       text,
    scope        text NOT NULL,                -- what it is to take, as JSON
    messages     text NOT NULL,                -- ids of the first messages that it took, or of the first copies: 32 hexadecimal digits each
    last_row_id  bigint,                       -- how far a change of many messages is
    until_row_id bigint,                       -- the last row that a replay may take
    changed      bigint NOT NULL,
    started_at   timestamptz NOT NULL,
    finished_at  timestamptz,                  -- null: it runs, or broke off
    CONSTRAINT {prefix}outbox_operations_pk PRIMARY KEY (id)
);
