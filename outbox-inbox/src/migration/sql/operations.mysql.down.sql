DROP TABLE IF EXISTS {schema}{prefix}inbox_operations;
