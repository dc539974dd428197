DROP TABLE {schema}{prefix}inbox_pauses;
