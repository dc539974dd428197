DROP TABLE {schema}{prefix}inbox_dead_letters;
DROP TABLE {schema}{prefix}inbox_messages;
