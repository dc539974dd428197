//! `cargo run -p examples --example 12_batches`
//!
//! Many messages in one transaction, exactly once each: for handlers whose own work is smaller than a commit. `statistics` takes several events
//! at once and writes them with one statement; `audit` is an ordinary handler of one event, and the inbox runs it for several messages in one
//! transaction. If a message fails, all are rolled back and handled one by one, so that only the bad one is dead-lettered. No server is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_core::testing::MemoryBroker;
use outbox_core::{DomainEvent, Relay};
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{Event, HandlerError, HandlerState, Inbox, Tx, idempotent_handler};
use outbox_sea_orm::{SqlStore, record};
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbErr, Statement, TransactionTrait,
};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "product", name = "sold")]
struct ProductSold {
    #[domain_event(aggregate_id)]
    product: u32,
    units: i64,
}

/// How often `statistics` ran.
#[derive(Clone, Default)]
struct Runs {
    count: Arc<AtomicUsize>,
}

/// The events stand in the order of their aggregates. `Vec<Metadata>`, if asked for, stands in the same order.
#[idempotent_handler(consumer = "statistics", batch = 100)]
async fn count(
    events: Vec<Event<ProductSold>>,
    tx: Tx<'_>,
    runs: HandlerState<Runs>,
) -> Result<(), HandlerError> {
    runs.count.fetch_add(1, Ordering::SeqCst);
    if events.iter().any(|event| event.units < 0) {
        return Err(HandlerError::fatal("less than nothing was sold"));
    }
    let units: i64 = events.iter().map(|event| event.units).sum();
    tx.execute_unprepared(&format!("UPDATE totals SET units = units + {units}"))
        .await?;
    Ok(())
}

#[idempotent_handler(consumer = "audit", batch = 50)]
async fn note(event: Event<ProductSold>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let sql = format!("INSERT INTO sales VALUES ({}, {})", event.product, event.units);
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1); // Each connection to `:memory:` is a database of its own.
    let db = Database::connect(options).await?;
    db.execute_unprepared(
        "CREATE TABLE totals (units INTEGER NOT NULL);
         INSERT INTO totals VALUES (0);
         CREATE TABLE sales (product INTEGER NOT NULL, units INTEGER NOT NULL)",
    )
    .await?;
    outbox_sea_orm::migrate(&db).await?;
    outbox_inbox::migrate(&db).await?;
    let broker = MemoryBroker::new();
    broker.duplicate_deliveries(usize::MAX); // Every message comes twice.

    for (what, bad) in [("100 sales", None), ("100 sales, one of them bad", Some(42))] {
        let tx = db.begin().await?;
        let sales = (0..100).map(|product| ProductSold {
            product,
            units: if bad == Some(product) { -1 } else { 1 },
        });
        record(&tx, sales.collect::<Vec<_>>()).await?;
        tx.commit().await?;
        Relay::new(SqlStore::new(db.clone()), broker.publisher())
            .drain()
            .await?;

        let runs = Runs::default();
        let inbox = Inbox::new(db.clone(), broker.subscriber()).with_state(runs.clone());
        let report = inbox.drain().await?;
        let counted = number(&db, "SELECT units AS n FROM totals").await?;
        println!(
            "{what}: dead letters {}, counted so far {counted}",
            report.dead_letters
        );
        if bad.is_none() {
            let few = runs.count.load(Ordering::SeqCst) < 100;
            println!("fewer runs than messages: {few}");
        }
    }
    for letter in dead_letters(&db, "statistics").await? {
        let product = letter.aggregate.map_or_else(String::new, |product| product.id);
        println!("dead letter of product {product}: {}", letter.error);
    }
    println!(
        "audited: {}",
        number(&db, "SELECT count(*) AS n FROM sales").await?
    );
    Ok(())
}

async fn number(db: &DatabaseConnection, sql: &str) -> Result<i64, DbErr> {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db.query_one_raw(statement).await?;
    row.map_or(Ok(0), |row| row.try_get("", "n"))
}
