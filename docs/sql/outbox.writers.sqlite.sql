-- outbox_record: records an event from any language, in the caller's transaction. SQLite 3.35 or later with its JSON functions. Needs the outbox
-- tables, and a database in UTF-8 (the default).
--
--     INSERT INTO outbox_record (aggregate_type, aggregate_id, event_name, payload, headers)
--     VALUES ('order', '42', 'placed', '{"total": 7}', '{"tenant": "a"}');
--
-- Contract and error codes: docs/guide/11-other-languages.md. SQLite has no procedures; a trigger on a view does the work. Columns that are left
-- out or null have their defaults.
CREATE VIEW IF NOT EXISTS outbox_record
    (aggregate_type, aggregate_id, event_name, payload, event_version, headers, dedup_key, available_at, subject, sequenced, id) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE 0;

CREATE TRIGGER IF NOT EXISTS outbox_record_insert INSTEAD OF INSERT ON outbox_record
BEGIN
    -- Functions on text stop at NUL, so NUL is looked for in the bytes.
    SELECT RAISE(ABORT, 'outbox OB001: aggregate_type is malformed; use [a-z][a-z0-9_-]*, at most 64 bytes')
    WHERE typeof(NEW.aggregate_type) <> 'text' OR length(CAST(NEW.aggregate_type AS BLOB)) > 64 OR instr(CAST(NEW.aggregate_type AS BLOB), x'00')
       OR NEW.aggregate_type NOT GLOB '[a-z]*' OR NEW.aggregate_type GLOB '*[^a-z0-9_-]*';
    SELECT RAISE(ABORT, 'outbox OB002: event_name is malformed; use [a-z][a-z0-9_-]*, at most 64 bytes')
    WHERE typeof(NEW.event_name) <> 'text' OR length(CAST(NEW.event_name AS BLOB)) > 64 OR instr(CAST(NEW.event_name AS BLOB), x'00')
       OR NEW.event_name NOT GLOB '[a-z]*' OR NEW.event_name GLOB '*[^a-z0-9_-]*';
    SELECT RAISE(ABORT, 'outbox OB003: event_version is not between 1 and 4294967295')
    WHERE typeof(NEW.event_version) NOT IN ('integer', 'null') OR NEW.event_version NOT BETWEEN 1 AND 4294967295;
    SELECT RAISE(ABORT, 'outbox OB004: aggregate_id must have 1 to 255 characters and no NUL')
    WHERE typeof(NEW.aggregate_id) NOT IN ('text', 'integer') OR length(CAST(NEW.aggregate_id AS TEXT)) NOT BETWEEN 1 AND 255
       OR instr(CAST(NEW.aggregate_id AS BLOB), x'00');
    SELECT RAISE(ABORT, 'outbox OB005: dedup_key must have 1 to 255 characters and no NUL')
    WHERE typeof(NEW.dedup_key) NOT IN ('text', 'null') OR length(CAST(NEW.dedup_key AS TEXT)) NOT BETWEEN 1 AND 255
       OR instr(CAST(NEW.dedup_key AS BLOB), x'00');
    -- Tokens between dots, without wildcards, controls and white space of Unicode.
    SELECT RAISE(ABORT, 'outbox OB006: subject is malformed; use tokens with dots, no wildcard, no white space, no leading $, at most 255 bytes')
    WHERE typeof(NEW.subject) NOT IN ('text', 'null') OR length(CAST(NEW.subject AS BLOB)) NOT BETWEEN 1 AND 255
       OR instr(CAST(NEW.subject AS BLOB), x'00') OR substr(NEW.subject, 1, 1) IN ('$', '.') OR substr(NEW.subject, -1) = '.'
       OR instr(NEW.subject, '..')
       OR NEW.subject GLOB '*[*>' || char(1) || '-' || char(32) || char(127) || '-' || char(160) || char(5760) || char(8192) || '-' || char(8202)
                           || char(8232, 8233, 8239, 8287, 12288) || ']*';
    SELECT RAISE(ABORT, 'outbox OB007: payload is missing or not JSON')
    WHERE typeof(NEW.payload) NOT IN ('text', 'blob') OR instr(CAST(NEW.payload AS BLOB), x'00') OR NOT json_valid(CAST(NEW.payload AS TEXT));
    SELECT RAISE(ABORT, 'outbox OB008: payload has more than 983040 bytes')
    WHERE length(CAST(NEW.payload AS BLOB)) > 983040;
    SELECT RAISE(ABORT, 'outbox OB009: headers are not a JSON object of strings')
    WHERE NEW.headers IS NOT NULL AND (typeof(NEW.headers) <> 'text' OR instr(CAST(NEW.headers AS BLOB), x'00') OR NOT json_valid(NEW.headers));
    SELECT RAISE(ABORT, 'outbox OB009: headers are not a JSON object of strings')
    WHERE json_type(NEW.headers) <> 'object';
    -- Halves of surrogate pairs are no characters; read as such, they become U+FFFD, and so do U+FFFE and U+FFFF.
    SELECT RAISE(ABORT, 'outbox OB009: headers are not a JSON object of strings')
    FROM json_each(COALESCE(NEW.headers, '{}')) AS h
    WHERE h.type <> 'text' OR replace(replace(replace(h.value, char(65533), ''), char(65534), ''), char(65535), '') GLOB '*' || char(65533) || '*';
    -- Escaped backslashes are taken out, so that each backslash that is left begins an escape.
    SELECT RAISE(ABORT, 'outbox OB012: a header value holds a line break or NUL')
    WHERE instr(replace(NEW.headers, '\\', ''), '\u0000');
    SELECT RAISE(ABORT, 'outbox OB010: a header name is malformed or given twice; use 1 to 128 ASCII letters, digits, - or _')
    FROM json_each(COALESCE(NEW.headers, '{}')) AS h
    WHERE length(CAST(h.key AS BLOB)) NOT BETWEEN 1 AND 128 OR h.key GLOB '*[^A-Za-z0-9_-]*'
       OR (SELECT count(*) <> count(DISTINCT lower(n.key)) FROM json_each(NEW.headers) AS n);
    SELECT RAISE(ABORT, 'outbox OB011: a header name is reserved')
    FROM json_each(COALESCE(NEW.headers, '{}')) AS h
    WHERE lower(h.key) = 'content-type' OR lower(h.key) GLOB 'nats-*' OR lower(h.key) GLOB 'outbox-*'
       OR (lower(h.key) GLOB 'ce-*' AND lower(h.key) NOT IN ('ce-correlationid', 'ce-causationid'));
    SELECT RAISE(ABORT, 'outbox OB012: a header value holds a line break or NUL')
    FROM json_each(COALESCE(NEW.headers, '{}')) AS h
    WHERE instr(h.value, char(13)) OR instr(h.value, char(10));
    SELECT RAISE(ABORT, 'outbox OB013: headers have more than 16384 bytes; each counts its name, its value and 4')
    WHERE (SELECT sum(length(h.key) + length(CAST(h.value AS BLOB)) + 4) FROM json_each(COALESCE(NEW.headers, '{}')) AS h) > 16384;
    SELECT RAISE(ABORT, 'outbox OB014: available_at, sequenced or id is of a wrong type')
    WHERE typeof(NEW.available_at) NOT IN ('integer', 'null') OR COALESCE(NEW.sequenced, 1) NOT IN (0, 1)
       OR (NEW.id IS NOT NULL AND lower(NEW.id) NOT GLOB replace('xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx', 'x', '[0-9a-f]'))
       OR (NEW.id IS NOT NULL AND length(CAST(NEW.id AS BLOB)) <> 36);
    -- A conflict clause of the caller (INSERT OR REPLACE) replaces those of the statements below, but not their ON CONFLICT … DO UPDATE.
    INSERT INTO outbox_aggregates (aggregate_type, aggregate_id, last_sequence, recorded_at)
    SELECT NEW.aggregate_type, CAST(NEW.aggregate_id AS TEXT), 1, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000
    WHERE COALESCE(NEW.sequenced, 1)
    ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last_sequence = last_sequence + 1, recorded_at = excluded.recorded_at;

    INSERT INTO outbox_dedup_keys (dedup_key, recorded_at)
    SELECT NEW.dedup_key, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000
    WHERE NEW.dedup_key IS NOT NULL
    ON CONFLICT (dedup_key) DO UPDATE SET dedup_key = RAISE(ABORT, 'outbox OB015: dedup_key exists; its event was recorded before');

    INSERT INTO outbox_messages (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject,
                                 content_type, payload, headers, dedup_key, available_at, created_at)
    SELECT
        -- The bytes of the id from its digits, each taken from a row of all bytes. A fresh id is a UUID v7: 48 bits of milliseconds since 1970,
        -- version and variant; the rest is random.
        (WITH RECURSIVE
            digits (hex) AS MATERIALIZED (SELECT COALESCE(lower(replace(NEW.id, '-', '')),
                printf('%012x7', CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER))
                || lower(substr(hex(randomblob(2)), 1, 3)) || substr('89ab', 1 + (random() & 3), 1) || lower(substr(hex(randomblob(8)), 1, 15)))),
            bytes (i, done) AS (
                SELECT 0, x''
                UNION ALL
                SELECT i + 1, CAST(done || substr(CAST(
                        x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f' ||
                        x'202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f' ||
                        x'404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f' ||
                        x'606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f' ||
                        x'808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f' ||
                        x'a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf' ||
                        x'c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf' ||
                        x'e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' AS BLOB),
                        1 + 16 * instr('123456789abcdef', substr(hex, 2 * i + 1, 1)) + instr('123456789abcdef', substr(hex, 2 * i + 2, 1)), 1) AS BLOB)
                FROM bytes, digits WHERE i < 16)
         SELECT done FROM bytes WHERE i = 16),
        -- The partition: 64-bit FNV-1a of type, zero byte and id, folded to 6 bits. Of the hash only the bits 0 to 5 and 32 to 37 count, and
        -- products carry upwards only, so 38 bits are enough, and the prime is 435 in them. x XOR y is (x | y) - (x & y).
        (WITH RECURSIVE
            key (hex) AS (SELECT hex(CAST(NEW.aggregate_type AS BLOB)) || '00' || hex(CAST(NEW.aggregate_id AS BLOB))),
            byte (i, value) AS (
                SELECT 0, 0
                UNION ALL
                SELECT i + 1, 16 * instr('123456789ABCDEF', substr(hex, 2 * i + 1, 1)) + instr('123456789ABCDEF', substr(hex, 2 * i + 2, 1))
                FROM byte, key WHERE 2 * i < length(hex)),
            fnv (i, h) AS (
                SELECT 0, 156835652389
                UNION ALL
                SELECT fnv.i + 1, (((h | value) - (h & value)) * 435) & 274877906943 FROM fnv JOIN byte ON byte.i = fnv.i + 1)
         SELECT ((h | (h >> 32)) - (h & (h >> 32))) & 63 FROM fnv ORDER BY i DESC LIMIT 1),
        NEW.aggregate_type, CAST(NEW.aggregate_id AS TEXT),
        CASE WHEN COALESCE(NEW.sequenced, 1) THEN (
            SELECT a.last_sequence FROM outbox_aggregates AS a
            WHERE a.aggregate_type = NEW.aggregate_type AND a.aggregate_id = CAST(NEW.aggregate_id AS TEXT)) END,
        NEW.aggregate_type || '.' || NEW.event_name, COALESCE(NEW.event_version, 1), NEW.subject, 'application/json', CAST(NEW.payload AS BLOB),
        (SELECT json_group_object(lower(h.key), h.value) FROM json_each(COALESCE(NEW.headers, '{}')) AS h),
        NEW.dedup_key, min(max(NEW.available_at, 1), 253402300799999999),
        CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000
    WHERE true
    ON CONFLICT (id) DO UPDATE SET id = RAISE(ABORT, 'outbox OB014: a message with this id exists');
END;

-- Applied migrations, as recorded by `migrate`.
CREATE TABLE IF NOT EXISTS outbox_writer_migrations (version varchar(255) NOT NULL PRIMARY KEY, applied_at bigint NOT NULL);

INSERT INTO outbox_writer_migrations (version, applied_at) VALUES ('outbox_writers_0001_record', CAST(strftime('%s', 'now') AS INTEGER)) ON CONFLICT DO NOTHING;
