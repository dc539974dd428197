-- Inbox tables for PostgreSQL 12 or later.

-- One row per message that a consumer handled or failed to handle. `handled` is written in the transaction of the effect, the other states
-- outside of it. The primary key is the guarantee; waiting for a row of it is how concurrent duplicates find out.
CREATE TABLE inbox_messages (
    consumer     text COLLATE "C" NOT NULL,
    message_id   uuid NOT NULL,
    status       smallint NOT NULL,            -- 0 failed (will be tried again), 1 handled, 2 dead letter
    attempts     integer NOT NULL,             -- failed ones, and those that were started again and left no result
    last_error   text,
    processed_at timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,         -- may be deleted then: what is delivered later takes effect again
    CONSTRAINT inbox_messages_pk PRIMARY KEY (consumer, message_id)
);

-- What may be deleted.
CREATE INDEX inbox_messages_expires_at ON inbox_messages (expires_at);

-- What consumers gave up, as it was received. `id` is derived from what was delivered, so that a delivery after a crash adds no
-- second row.
CREATE TABLE inbox_dead_letters (
    id         uuid NOT NULL,
    consumer   text COLLATE "C" NOT NULL,
    message_id uuid,                           -- null: no message of an outbox
    subject    text NOT NULL,
    position   bigint NOT NULL,                -- in the stream
    headers    json NOT NULL,                  -- array of [name, value]
    payload    bytea NOT NULL,
    error      text NOT NULL,
    attempts   integer NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT inbox_dead_letters_pk PRIMARY KEY (id)
);

-- What is listed, in its order.
CREATE INDEX inbox_dead_letters_consumer ON inbox_dead_letters (consumer, created_at);
