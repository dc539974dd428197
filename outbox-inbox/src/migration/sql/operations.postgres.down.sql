DROP TABLE {schema}{prefix}inbox_operations;
