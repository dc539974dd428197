-- The pauses of publishing, which operators begin and end, and which relays read before they renew their leases: one row per aggregate type, and the empty
-- type for all messages. A pause that has ended keeps its row until the last of what it held is released.
CREATE TABLE {schema}{prefix}outbox_pauses (
    aggregate_type text COLLATE "C" NOT NULL,    -- empty: all messages
    reason         text NOT NULL,
    paused_by      text NOT NULL,
    paused_at      timestamptz NOT NULL,
    ends_at        timestamptz,                  -- null: until an operator ends it
    CONSTRAINT {prefix}outbox_pauses_pk PRIMARY KEY (aggregate_type)
);
