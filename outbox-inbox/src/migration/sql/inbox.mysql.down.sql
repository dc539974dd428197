DROP TABLE IF EXISTS {schema}{prefix}inbox_dead_letters;
DROP TABLE IF EXISTS {schema}{prefix}inbox_messages;
