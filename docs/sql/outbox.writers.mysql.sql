-- outbox_record: records an event from any language, in the caller's transaction. MySQL 8.0.4 or later and MariaDB 10.6 or later. Needs the
-- outbox tables.
--
--     CALL outbox_record('order', '42', 'placed', '{"total": 7}', NULL, '{"tenant": "a"}', NULL, NULL, NULL, NULL, NULL);
--
-- Contract, error codes and rights: docs/guide/11-other-languages.md. The procedure runs with the rights of the user that created it (SQL
-- SECURITY DEFINER): a writer needs EXECUTE and no right on the tables, so whatever it records has passed the checks. All of it is one procedure,
-- because functions need more rights to be created where the server writes a binary log.
DROP PROCEDURE IF EXISTS outbox_record;

DELIMITER //
CREATE PROCEDURE outbox_record(
    IN p_aggregate_type LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_aggregate_id   LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_event_name     LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_payload        LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_event_version  BIGINT,
    IN p_headers        LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_dedup_key      LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_available_at   DATETIME(6),
    IN p_subject        LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_sequenced      BOOLEAN,
    IN p_id             LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_key VARBINARY(1085);
    DECLARE v_hash BIGINT UNSIGNED DEFAULT 156835652389;
    DECLARE v_i, v_size, v_count BIGINT DEFAULT 0;
    DECLARE v_headers MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT '';
    DECLARE v_names, v_values, v_value, v_plain LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE v_name LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE v_seen LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT ' ';
    -- A backslash, whatever sql_mode says about backslashes in literals.
    DECLARE v_backslash CHAR(1) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT CHAR(92 USING utf8mb4);
    DECLARE v_escape VARCHAR(3) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT CONCAT(v_backslash, v_backslash, 'u');
    DECLARE v_random CHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE v_id BINARY(16);
    DECLARE v_sequence BIGINT DEFAULT NULL;
    DECLARE v_last_insert_id BIGINT UNSIGNED DEFAULT LAST_INSERT_ID();

    IF p_aggregate_type IS NULL OR LENGTH(p_aggregate_type) > 64 OR p_aggregate_type REGEXP '[^a-z0-9_-]'
       OR LEFT(p_aggregate_type, 1) NOT REGEXP '[a-z]' THEN
        SIGNAL SQLSTATE 'OB001' SET MESSAGE_TEXT = 'outbox OB001: aggregate_type is malformed; use [a-z][a-z0-9_-]*, at most 64 bytes';
    END IF;
    IF p_event_name IS NULL OR LENGTH(p_event_name) > 64 OR p_event_name REGEXP '[^a-z0-9_-]' OR LEFT(p_event_name, 1) NOT REGEXP '[a-z]' THEN
        SIGNAL SQLSTATE 'OB002' SET MESSAGE_TEXT = 'outbox OB002: event_name is malformed; use [a-z][a-z0-9_-]*, at most 64 bytes';
    END IF;
    IF p_event_version NOT BETWEEN 1 AND 4294967295 THEN
        SIGNAL SQLSTATE 'OB003' SET MESSAGE_TEXT = 'outbox OB003: event_version is not between 1 and 4294967295';
    END IF;
    IF p_aggregate_id IS NULL OR CHAR_LENGTH(p_aggregate_id) NOT BETWEEN 1 AND 255 OR HEX(p_aggregate_id) REGEXP '^(..)*00' THEN
        SIGNAL SQLSTATE 'OB004' SET MESSAGE_TEXT = 'outbox OB004: aggregate_id must have 1 to 255 characters and no NUL';
    END IF;
    IF CHAR_LENGTH(p_dedup_key) NOT BETWEEN 1 AND 255 OR HEX(p_dedup_key) REGEXP '^(..)*00' THEN
        SIGNAL SQLSTATE 'OB005' SET MESSAGE_TEXT = 'outbox OB005: dedup_key must have 1 to 255 characters and no NUL';
    END IF;
    -- Tokens between dots, without wildcards, controls and white space of Unicode. As bytes: an expression over bytes means the same in the
    -- regular expressions of both servers.
    IF LENGTH(p_subject) NOT BETWEEN 1 AND 255 OR LEFT(p_subject, 1) IN ('$', '.') OR RIGHT(p_subject, 1) = '.'
       OR INSTR(p_subject, '..') OR INSTR(p_subject, '*') OR INSTR(p_subject, '>')
       OR HEX(p_subject) REGEXP '^(..)*([01].|20|7F|C2[89].|C2A0|E19A80|E2808[0-9A]|E280A[89F]|E2819F|E38080)' THEN
        SIGNAL SQLSTATE 'OB006' SET MESSAGE_TEXT =
            'outbox OB006: subject is malformed; use tokens with dots, no wildcard, no white space, no leading $, at most 255 bytes';
    END IF;
    IF p_payload IS NULL OR NOT COALESCE(JSON_VALID(p_payload), FALSE) THEN
        SIGNAL SQLSTATE 'OB007' SET MESSAGE_TEXT = 'outbox OB007: payload is missing or not JSON';
    END IF;
    IF LENGTH(p_payload) > 983040 THEN
        SIGNAL SQLSTATE 'OB008' SET MESSAGE_TEXT = 'outbox OB008: payload has more than 983040 bytes';
    END IF;
    IF p_headers IS NOT NULL THEN
        IF NOT COALESCE(JSON_VALID(p_headers), FALSE) OR JSON_TYPE(p_headers) <> 'OBJECT' THEN
            SIGNAL SQLSTATE 'OB009' SET MESSAGE_TEXT = 'outbox OB009: headers are not a JSON object of strings';
        END IF;
        -- Without escaped backslashes, each backslash begins an escape. Halves of surrogate pairs are no characters.
        SET v_plain = REPLACE(p_headers, CONCAT(v_backslash, v_backslash), '');
        IF REGEXP_REPLACE(v_plain, CONCAT(v_escape, '[dD][89abAB][0-9a-fA-F]{2}', v_escape, '[dD][c-fC-F][0-9a-fA-F]{2}'), '')
           REGEXP CONCAT(v_escape, '[dD][89a-fA-F]') THEN
            SIGNAL SQLSTATE 'OB009' SET MESSAGE_TEXT = 'outbox OB009: headers are not a JSON object of strings';
        END IF;
        IF INSTR(v_plain, CONCAT(v_backslash, 'u0000')) THEN
            SIGNAL SQLSTATE 'OB012' SET MESSAGE_TEXT = 'outbox OB012: a header value holds a line break or NUL';
        END IF;
        -- Names and values by their places: MariaDB does not find `$."-"`.
        SET v_names = JSON_KEYS(p_headers), v_values = JSON_EXTRACT(p_headers, '$.*'), v_count = JSON_LENGTH(JSON_KEYS(p_headers));
        IF v_count <> JSON_LENGTH(p_headers) THEN
            SIGNAL SQLSTATE 'OB010' SET MESSAGE_TEXT =
                'outbox OB010: a header name is malformed or given twice; use 1 to 128 ASCII letters, digits, - or _';
        END IF;
        WHILE v_i < v_count DO
            SET v_name = JSON_UNQUOTE(JSON_EXTRACT(v_names, CONCAT('$[', v_i, ']')));
            IF LENGTH(v_name) NOT BETWEEN 1 AND 128 OR v_name REGEXP '[^A-Za-z0-9_-]' OR INSTR(v_seen, CONCAT(' ', LOWER(v_name), ' ')) THEN
                SIGNAL SQLSTATE 'OB010' SET MESSAGE_TEXT =
                    'outbox OB010: a header name is malformed or given twice; use 1 to 128 ASCII letters, digits, - or _';
            END IF;
            SET v_value = JSON_EXTRACT(v_values, CONCAT('$[', v_i, ']')), v_name = LOWER(v_name);
            IF v_value IS NULL OR JSON_TYPE(v_value) <> 'STRING' THEN
                SIGNAL SQLSTATE 'OB009' SET MESSAGE_TEXT = 'outbox OB009: headers are not a JSON object of strings';
            END IF;
            IF v_name REGEXP '^(ce-|nats-|outbox-)' AND v_name NOT IN ('ce-correlationid', 'ce-causationid') OR v_name = 'content-type' THEN
                SIGNAL SQLSTATE 'OB011' SET MESSAGE_TEXT = 'outbox OB011: a header name is reserved';
            END IF;
            SET v_plain = JSON_UNQUOTE(v_value);
            IF INSTR(v_plain, CHAR(13 USING utf8mb4)) OR INSTR(v_plain, CHAR(10 USING utf8mb4)) THEN
                SIGNAL SQLSTATE 'OB012' SET MESSAGE_TEXT = 'outbox OB012: a header value holds a line break or NUL';
            END IF;
            SET v_size = v_size + LENGTH(v_name) + LENGTH(v_plain) + 4;
            IF v_size > 16384 THEN
                SIGNAL SQLSTATE 'OB013' SET MESSAGE_TEXT = 'outbox OB013: headers have more than 16384 bytes; each counts its name, its value and 4';
            END IF;
            SET v_headers = CONCAT(v_headers, IF(v_i = 0, '"', ',"'), v_name, '":', v_value),
                v_seen = CONCAT(v_seen, v_name, ' '), v_i = v_i + 1;
        END WHILE;
    END IF;
    IF p_id IS NOT NULL AND (LENGTH(p_id) <> 36
       OR p_id NOT REGEXP '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}') THEN
        SIGNAL SQLSTATE 'OB014' SET MESSAGE_TEXT = 'outbox OB014: id is not a UUID in text form';
    END IF;

    -- The partition: 64-bit FNV-1a of type, zero byte and id, folded to 6 bits. Of the hash only the bits 0 to 5 and 32 to 37 count, and products
    -- carry upwards only, so 38 bits are enough, and the prime is 435 in them.
    SET v_key = CONCAT(CAST(p_aggregate_type AS BINARY), x'00', CAST(p_aggregate_id AS BINARY)), v_i = 1;
    WHILE v_i <= LENGTH(v_key) DO
        SET v_hash = ((v_hash ^ ORD(SUBSTRING(v_key, v_i, 1))) * 435) & 274877906943, v_i = v_i + 1;
    END WHILE;

    -- UUID v7: 48 bits of milliseconds since 1970, version and variant; the rest is a hash, because MariaDB 10.6 has no RANDOM_BYTES. UUID() is
    -- different in each call on a server, RAND() and the server's name on each server.
    SET v_random = SHA2(CONCAT(UUID(), RAND(), RAND(), CONNECTION_ID(), @@hostname), 256);
    SET v_id = UNHEX(COALESCE(REPLACE(p_id, '-', ''), CONCAT(
        LPAD(HEX(CAST(FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000) AS UNSIGNED)), 12, '0'), '7', SUBSTR(v_random, 1, 3),
        HEX(128 | (CONV(SUBSTR(v_random, 4, 2), 16, 10) & 63)), SUBSTR(v_random, 6, 14))));

    BEGIN
        -- Outside a transaction the savepoint is gone at once: each statement would be committed by itself.
        DECLARE EXIT HANDLER FOR 1305
            SIGNAL SQLSTATE 'OB016' SET MESSAGE_TEXT = 'outbox OB016: no transaction is open; begin one, and change your data in it too';
        SAVEPOINT outbox_record;
        RELEASE SAVEPOINT outbox_record;
    END;
    SAVEPOINT outbox_record;
    BEGIN
        -- A number that no message has would be a hole. A deadlock has rolled all back; the savepoint (1305) is gone then.
        DECLARE EXIT HANDLER FOR SQLEXCEPTION
        BEGIN
            BEGIN
                DECLARE CONTINUE HANDLER FOR 1305 BEGIN END;
                ROLLBACK TO SAVEPOINT outbox_record;
            END;
            RESIGNAL;
        END;
        -- Locks the head row (primary key) until the transaction ends. `row_id` is drawn after that, by the insert of the message. The read locks
        -- too, because a plain one sees the transaction's snapshot, which may be older than the row.
        IF COALESCE(p_sequenced, TRUE) THEN
            INSERT INTO outbox_aggregates (aggregate_type, aggregate_id, last_sequence, recorded_at)
            VALUES (CAST(p_aggregate_type AS BINARY), CAST(p_aggregate_id AS BINARY), 1, UTC_TIMESTAMP(6))
            ON DUPLICATE KEY UPDATE last_sequence = last_sequence + 1, recorded_at = UTC_TIMESTAMP(6);
            SELECT last_sequence INTO v_sequence FROM outbox_aggregates
            WHERE aggregate_type = CAST(p_aggregate_type AS BINARY) AND aggregate_id = CAST(p_aggregate_id AS BINARY) FOR UPDATE;
        END IF;
        IF p_dedup_key IS NOT NULL THEN
            BEGIN
                DECLARE EXIT HANDLER FOR 1062
                    SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT = 'outbox OB015: dedup_key exists; its event was recorded before';
                INSERT INTO outbox_dedup_keys (dedup_key, recorded_at) VALUES (CAST(p_dedup_key AS BINARY), UTC_TIMESTAMP(6));
            END;
        END IF;
        INSERT INTO outbox_messages (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject,
                                     content_type, payload, headers, dedup_key, available_at, created_at)
        VALUES (v_id, (v_hash ^ (v_hash >> 32)) & 63, CAST(p_aggregate_type AS BINARY), CAST(p_aggregate_id AS BINARY), v_sequence,
                CONCAT(p_aggregate_type, '.', p_event_name), COALESCE(p_event_version, 1), p_subject, 'application/json', p_payload,
                CONCAT('{', v_headers, '}'), CAST(p_dedup_key AS BINARY),
                LEAST(GREATEST(p_available_at, TIMESTAMP'1970-01-01 00:00:00.000001'), TIMESTAMP'9999-12-31 23:59:59.999999'), UTC_TIMESTAMP(6));
    END;
    RELEASE SAVEPOINT outbox_record;
    -- What the caller's own last insert has given.
    DO LAST_INSERT_ID(v_last_insert_id);
END//
DELIMITER ;

-- Applied migrations, as recorded by `migrate`.
CREATE TABLE IF NOT EXISTS outbox_writer_migrations (version varchar(255) NOT NULL PRIMARY KEY, applied_at bigint NOT NULL) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT INTO outbox_writer_migrations (version, applied_at) VALUES ('outbox_writers_0001_record', UNIX_TIMESTAMP()) ON DUPLICATE KEY UPDATE version = version;
