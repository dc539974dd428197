DROP VIEW IF EXISTS {prefix}inbox_dead_letters_readable;
DROP TABLE IF EXISTS {prefix}inbox_dead_letters;
DROP TABLE IF EXISTS {prefix}inbox_sequences;
DROP TABLE IF EXISTS {prefix}inbox_messages;
DROP TABLE IF EXISTS {prefix}inbox_requests;
