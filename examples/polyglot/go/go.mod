module order_service

go 1.19

require github.com/jackc/pgx/v4 v4.18.1
