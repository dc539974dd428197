DROP TABLE IF EXISTS {prefix}inbox_dead_letters;
DROP TABLE IF EXISTS {prefix}inbox_messages;
