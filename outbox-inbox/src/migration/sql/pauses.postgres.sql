-- Paused consumers. Their processes poll this table once a second.
CREATE TABLE {schema}{prefix}inbox_pauses (
    consumer  text COLLATE "C" NOT NULL,
    reason    text NOT NULL,                   -- for people
    paused_at timestamptz NOT NULL,
    CONSTRAINT {prefix}inbox_pauses_pk PRIMARY KEY (consumer)
);
