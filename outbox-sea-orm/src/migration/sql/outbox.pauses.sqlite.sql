-- The pauses of publishing, which operators begin and end, and which relays read before they renew their leases: one row per aggregate type, and the empty
-- type for all messages. A pause that has ended keeps its row until the last of what it held is released.
CREATE TABLE IF NOT EXISTS {prefix}outbox_pauses (
    aggregate_type TEXT NOT NULL PRIMARY KEY,   -- empty: all messages
    reason         TEXT NOT NULL,
    paused_by      TEXT NOT NULL,
    paused_at      INTEGER NOT NULL,
    ends_at        INTEGER                      -- null: until an operator ends it
);
