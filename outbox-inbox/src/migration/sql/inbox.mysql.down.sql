DROP VIEW IF EXISTS {schema}{prefix}inbox_dead_letters_readable;
DROP TABLE IF EXISTS {schema}{prefix}inbox_dead_letters;
DROP TABLE IF EXISTS {schema}{prefix}inbox_sequences;
DROP TABLE IF EXISTS {schema}{prefix}inbox_messages;
DROP TABLE IF EXISTS {schema}{prefix}inbox_requests;
