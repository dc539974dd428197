//! `cargo run -p examples --example 10_constraint`
//!
//! Strategy `constraint`: the handler's own table has a unique key already, so a second row for the same thing is refused anyway. A violation of the
//! named constraint says that the message has had its effect. Everything else that the database refuses is a failure. The strategy remembers a message as
//! long as the handler's row exists. The inbox writes no row for a message that is delivered once. A repeated delivery is counted before the handler runs,
//! and that row stays until it expires. No server is needed.

use outbox_core::testing::MemoryBroker;
use outbox_core::{DomainEvent, Relay};
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{Event, HandlerError, Inbox, Tx, idempotent_handler};
use outbox_sea_orm::{SqlStore, record};
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbErr, Statement, TransactionTrait,
};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u32,
    units: u32,
}

/// Names as the database reports them: PostgreSQL and MySQL the constraint's, SQLite the columns'. On MySQL and MariaDB a primary key is called
/// `PRIMARY` in every table, so give the table a unique key with a name of its own there.
#[idempotent_handler(
    consumer = "inventory",
    strategy = constraint("reservations_order", "reservations.order_id"),
    attempts = 2,
    backoff = "10ms..20ms"
)]
async fn reserve(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let sql = format!(
        "INSERT INTO reservations (order_id, units) VALUES ({}, {})",
        event.order_id, event.units
    );
    // First of all: what else a duplicate runs into would count as a failure. Whatever it did before is rolled back.
    tx.execute_unprepared(&sql).await?;
    let sql = format!("UPDATE stock SET units = units - {}", event.units);
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1); // Each connection to `:memory:` is a database of its own.
    let db = Database::connect(options).await?;
    db.execute_unprepared(
        "CREATE TABLE stock (units INTEGER NOT NULL CHECK (units >= 0));
         INSERT INTO stock VALUES (10);
         CREATE TABLE reservations (
             order_id INTEGER NOT NULL,
             units INTEGER NOT NULL,
             CONSTRAINT reservations_order UNIQUE (order_id)
         )",
    )
    .await?;
    outbox_sea_orm::migrate(&db).await?;
    outbox_inbox::migrate(&db).await?;

    let tx = db.begin().await?;
    record(
        &tx,
        [(1, 3), (2, 50), (3, 4)].map(|(order_id, units)| OrderPlaced { order_id, units }),
    )
    .await?;
    tx.commit().await?;
    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(db.clone()), broker.publisher())
        .drain()
        .await?;

    // Orders 1 and 3 are delivered twice. Order 2 asks for more than there is, which violates another constraint.
    broker.duplicate_deliveries(usize::MAX);
    let inbox = Inbox::new(db.clone(), broker.subscriber());
    let report = inbox.drain().await?;
    println!("handled {}, dead letters {}", report.handled, report.dead_letters);
    for letter in dead_letters(&db, "inventory").await? {
        println!(
            "order {}: {} attempts",
            letter.aggregate.map_or_else(String::new, |order| order.id),
            letter.attempts
        );
    }
    println!(
        "reservations: {}",
        number(&db, "SELECT count(*) AS n FROM reservations").await?
    );
    println!(
        "units left: {}",
        number(&db, "SELECT units AS n FROM stock").await?
    );
    println!(
        "inbox rows of repeated deliveries: {}",
        outbox_inbox::testing::handled(&db, "inventory").await?.len()
    );
    Ok(())
}

async fn number(db: &DatabaseConnection, sql: &str) -> Result<i64, DbErr> {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db.query_one_raw(statement).await?;
    row.map_or(Ok(0), |row| row.try_get("", "n"))
}
