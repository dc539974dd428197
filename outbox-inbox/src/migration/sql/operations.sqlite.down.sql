DROP TABLE IF EXISTS {prefix}inbox_operations;
