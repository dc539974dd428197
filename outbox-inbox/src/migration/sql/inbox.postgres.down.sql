DROP VIEW {schema}{prefix}inbox_dead_letters_readable;
DROP FUNCTION {schema}{prefix}inbox_readable(bytea);
DROP TABLE {schema}{prefix}inbox_dead_letters;
DROP TABLE {schema}{prefix}inbox_sequences;
DROP TABLE {schema}{prefix}inbox_messages;
DROP TABLE {schema}{prefix}inbox_requests;
