// An order service with pgx: an order and its event are saved in one transaction.
//
//	DATABASE_URL=postgresql://… go run . PRODUCT UNITS
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"

	"github.com/jackc/pgx/v4"
)

type order struct {
	ID      int    `json:"order_id"`
	Product string `json:"product"`
	Units   int    `json:"units"`
}

// place adds to the caller's transaction: the event exists if and only if the order does.
func place(ctx context.Context, tx pgx.Tx, o order) error {
	insert := "INSERT INTO orders (product, units) VALUES ($1, $2) RETURNING id"
	if err := tx.QueryRow(ctx, insert, o.Product, o.Units).Scan(&o.ID); err != nil {
		return err
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "SELECT outbox_record('order', $1, 'placed', $2)", strconv.Itoa(o.ID), payload)
	return err
}

func run(ctx context.Context, product, units string) error {
	count, err := strconv.Atoi(units)
	if err != nil {
		return err
	}
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	return db.BeginFunc(ctx, func(tx pgx.Tx) error {
		return place(ctx, tx, order{Product: product, Units: count})
	})
}

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}
