-- outbox_record: records an event from any language, in the caller's transaction. PostgreSQL 12 or later. Needs the outbox tables.
--
--     SELECT outbox_record('order', '42', 'placed', '{"total": 7}', headers => '{"tenant": "a"}');
--
-- Contract, error codes and rights: docs/guide/11-other-languages.md. The function runs with the rights of its owner (SECURITY DEFINER): a
-- writer needs EXECUTE and no right on the tables, so whatever it records has passed the checks.
--
-- Names in the function mean objects of pg_catalog and those beside the tables. Otherwise a caller could put objects of its own in front of
-- them, which would run with the rights of the owner.
DO $do$
BEGIN
    EXECUTE pg_catalog.replace($sql$
CREATE FUNCTION @outbox_record(
    aggregate_type text,
    aggregate_id   text,
    event_name     text,
    payload        json,
    event_version  bigint DEFAULT 1,
    headers        json DEFAULT NULL,
    dedup_key      text DEFAULT NULL,
    available_at   timestamptz DEFAULT NULL,
    subject        text DEFAULT NULL,
    sequenced      boolean DEFAULT true,
    id             uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
#variable_conflict use_variable
DECLARE
    bytes  bytea := convert_to(payload::text, 'UTF8');
    size   bigint := 0;
    stored json := '{}';
    key    bytea;
    hash   bigint := 156835652389;
    number bigint;
    row_id bigint;
BEGIN
    IF aggregate_type IS NULL OR aggregate_type !~ '^[a-z][a-z0-9_-]{0,63}$' THEN
        RAISE EXCEPTION 'outbox OB001: aggregate_type is malformed; use [a-z][a-z0-9_-]*, at most 64 bytes' USING ERRCODE = 'OB001';
    END IF;
    IF event_name IS NULL OR event_name !~ '^[a-z][a-z0-9_-]{0,63}$' THEN
        RAISE EXCEPTION 'outbox OB002: event_name is malformed; use [a-z][a-z0-9_-]*, at most 64 bytes' USING ERRCODE = 'OB002';
    END IF;
    IF event_version NOT BETWEEN 1 AND 4294967295 THEN
        RAISE EXCEPTION 'outbox OB003: event_version is not between 1 and 4294967295' USING ERRCODE = 'OB003';
    END IF;
    IF aggregate_id IS NULL OR char_length(aggregate_id) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'outbox OB004: aggregate_id must have 1 to 255 characters and no NUL' USING ERRCODE = 'OB004';
    END IF;
    IF char_length(dedup_key) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'outbox OB005: dedup_key must have 1 to 255 characters and no NUL' USING ERRCODE = 'OB005';
    END IF;
    -- Tokens between dots, without wildcards, controls and white space of Unicode.
    IF octet_length(convert_to(subject, 'UTF8')) NOT BETWEEN 1 AND 255 OR subject ~ '^\$' OR subject ~ '(^|\.)(\.|$)'
       OR subject ~ '[*>\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]' THEN
        RAISE EXCEPTION 'outbox OB006: subject is malformed; use tokens with dots, no wildcard, no white space, no leading $, at most 255 bytes'
            USING ERRCODE = 'OB006';
    END IF;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'outbox OB007: payload is missing or not JSON' USING ERRCODE = 'OB007';
    END IF;
    IF length(bytes) > 983040 THEN
        RAISE EXCEPTION 'outbox OB008: payload has more than 983040 bytes' USING ERRCODE = 'OB008';
    END IF;
    IF headers IS NOT NULL THEN
        IF json_typeof(headers) <> 'object' THEN
            RAISE EXCEPTION 'outbox OB009: headers are not a JSON object of strings' USING ERRCODE = 'OB009';
        END IF;
        -- Text of PostgreSQL cannot hold NUL, so reading such a name or value is an error.
        BEGIN
            IF EXISTS (SELECT FROM json_each(headers) AS h WHERE json_typeof(h.value) <> 'string') THEN
                RAISE EXCEPTION 'outbox OB009: headers are not a JSON object of strings' USING ERRCODE = 'OB009';
            END IF;
            IF EXISTS (SELECT FROM json_object_keys(headers) AS h (name) WHERE h.name !~ '^[A-Za-z0-9_-]{1,128}$')
               OR (SELECT count(*) <> count(DISTINCT lower(h.name)) FROM json_object_keys(headers) AS h (name)) THEN
                RAISE EXCEPTION 'outbox OB010: a header name is malformed or given twice; use 1 to 128 ASCII letters, digits, - or _'
                    USING ERRCODE = 'OB010';
            END IF;
            IF EXISTS (SELECT FROM json_object_keys(headers) AS h (name)
                       WHERE lower(h.name) ~ '^(ce-|nats-|outbox-|content-type$)'
                         AND lower(h.name) NOT IN ('ce-correlationid', 'ce-causationid')) THEN
                RAISE EXCEPTION 'outbox OB011: a header name is reserved' USING ERRCODE = 'OB011';
            END IF;
            IF EXISTS (SELECT FROM json_each_text(headers) AS h (name, text) WHERE h.text ~ '[\r\n]') THEN
                RAISE EXCEPTION 'outbox OB012: a header value holds a line break or NUL' USING ERRCODE = 'OB012';
            END IF;
            SELECT COALESCE(sum(octet_length(h.name) + octet_length(convert_to(h.text, 'UTF8')) + 4), 0),
                   COALESCE(json_object_agg(lower(h.name), h.text), '{}')
            INTO size, stored FROM json_each_text(headers) AS h (name, text);
        EXCEPTION
            WHEN untranslatable_character THEN
                RAISE EXCEPTION 'outbox OB012: a header value holds a line break or NUL' USING ERRCODE = 'OB012';
            WHEN invalid_text_representation THEN
                RAISE EXCEPTION 'outbox OB009: headers are not a JSON object of strings' USING ERRCODE = 'OB009';
        END;
        IF size > 16384 THEN
            RAISE EXCEPTION 'outbox OB013: headers have more than 16384 bytes; each counts its name, its value and 4' USING ERRCODE = 'OB013';
        END IF;
    END IF;

    -- The partition: 64-bit FNV-1a of type, zero byte and id, folded to 6 bits. Of the hash only the bits 0 to 5 and 32 to 37 count, and products
    -- carry upwards only, so 38 bits are enough, and the prime is 435 in them.
    key := convert_to(aggregate_type, 'UTF8') || '\x00'::bytea || convert_to(aggregate_id, 'UTF8');
    FOR i IN 0 .. length(key) - 1 LOOP
        hash := ((hash # get_byte(key, i)) * 435) & 274877906943;
    END LOOP;

    -- UUID v7: 48 bits of milliseconds since 1970, version and variant; the rest is random.
    id := COALESCE(id, encode(set_bit(set_bit(
        overlay(uuid_send(gen_random_uuid()) PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
        52, 1), 53, 1), 'hex')::uuid);

    -- Locks the head row (primary key) until the transaction ends. The row ids of an aggregate rise even if the sequence is set back.
    row_id := nextval('@outbox_row_ids'::regclass);
    IF COALESCE(sequenced, true) THEN
        INSERT INTO @outbox_aggregates AS head (aggregate_type, aggregate_id, last_sequence, last_row_id)
        VALUES (aggregate_type, aggregate_id, 1, row_id)
        ON CONFLICT ON CONSTRAINT outbox_aggregates_pk
        DO UPDATE SET last_sequence = head.last_sequence + 1, recorded_at = EXCLUDED.recorded_at,
                      last_row_id = CASE WHEN EXCLUDED.last_row_id > head.last_row_id THEN EXCLUDED.last_row_id
                                    ELSE GREATEST(nextval('@outbox_row_ids'::regclass), head.last_row_id + 1) END
        RETURNING head.last_sequence, head.last_row_id INTO number, row_id;
    END IF;
    -- A key that exists is a unique violation (23505) of this table's primary key.
    IF dedup_key IS NOT NULL THEN
        INSERT INTO @outbox_dedup_keys (dedup_key) VALUES (dedup_key);
    END IF;
    INSERT INTO @outbox_messages (row_id, id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject,
                                 content_type, payload, headers, dedup_key, available_at)
    OVERRIDING SYSTEM VALUE
    VALUES (row_id, id, (hash # (hash >> 32)) & 63, aggregate_type, aggregate_id, number, aggregate_type || '.' || event_name,
            COALESCE(event_version, 1), subject, 'application/json', bytes, stored, dedup_key,
            -- GREATEST and LEAST pass over null.
            CASE WHEN available_at IS NOT NULL THEN LEAST(GREATEST(available_at, '1970-01-01 00:00:00.000001+00'), '9999-12-31 23:59:59.999999+00') END);
    RETURN id;
END
$$;

-- By default everybody may execute a new function. Grant it to the writers: GRANT EXECUTE ON FUNCTION outbox_record TO writer.
REVOKE ALL ON FUNCTION @outbox_record FROM PUBLIC;
    $sql$, '@', (SELECT pg_catalog.quote_ident(n.nspname) || '.' FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                 WHERE c.oid = 'outbox_messages'::regclass::oid));
END
$do$;

-- Applied migrations, as recorded by `migrate`.
CREATE TABLE IF NOT EXISTS outbox_writer_migrations (version varchar(255) NOT NULL PRIMARY KEY, applied_at bigint NOT NULL);

INSERT INTO outbox_writer_migrations (version, applied_at) VALUES ('outbox_writers_0001_record', extract(epoch FROM now())::int8) ON CONFLICT DO NOTHING;
