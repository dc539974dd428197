//! `cargo run -p examples --example 09_business_key`
//!
//! Strategy `key`: two systems report the same order, each with an event of its own. Their ids differ, so an inbox that goes by ids would bill
//! twice; the order number says that they mean the same. The first event with a number takes effect, later ones are duplicates. Costs what
//! the default costs: a row per key, kept for 15 days. No server is needed.

use outbox_core::testing::MemoryBroker;
use outbox_core::{DomainEvent, Relay};
use outbox_inbox::{Event, HandlerError, Inbox, Metadata, Tx, idempotent_handler};
use outbox_sea_orm::{SqlStore, record};
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbErr, Statement, TransactionTrait,
};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "report", name = "received")]
struct OrderReported {
    #[domain_event(aggregate_id)]
    report: String,
    order_number: String,
    cents: i64,
}

/// A key of several fields is a function: `key(OrderReported::shop_and_number)`.
#[idempotent_handler(consumer = "billing", strategy = key(order_number), backoff = "10ms..20ms")]
async fn bill(event: Event<OrderReported>, metadata: Metadata, tx: Tx<'_>) -> Result<(), HandlerError> {
    let OrderReported {
        order_number, cents, ..
    } = &*event;
    let sql = format!("INSERT INTO bills (order_number, cents) VALUES ('{order_number}', {cents})");
    tx.execute_unprepared(&sql).await?;
    // A failure rolls back the bill and the key with it, so the number is still free for the next attempt.
    if order_number == "N-2" && metadata.attempt() == 1 {
        return Err(HandlerError::retry("the printer is out of paper"));
    }
    println!("billed {order_number}, as {} says", event.report);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1); // Each connection to `:memory:` is a database of its own.
    let db = Database::connect(options).await?;
    // No unique key: what counts is that the handler does not run again.
    db.execute_unprepared("CREATE TABLE bills (order_number TEXT NOT NULL, cents INTEGER NOT NULL)")
        .await?;
    outbox_sea_orm::migrate(&db).await?;
    outbox_inbox::migrate(&db).await?;
    let broker = MemoryBroker::new();
    let inbox = Inbox::new(db.clone(), broker.subscriber());

    for (report, order_number, remark) in [
        ("web-1", "N-1", "for the first time"),
        ("phone-1", "N-1", "the same order, from the other system"),
        ("web-2", "N-2", "fails once"),
        ("phone-2", "N-2", "the same order, after the failure"),
    ] {
        println!("{report}: {order_number}, {remark}");
        let tx = db.begin().await?;
        let event = OrderReported {
            report: report.to_owned(),
            order_number: order_number.to_owned(),
            cents: 1999,
        };
        record(&tx, [event]).await?;
        tx.commit().await?;
        Relay::new(SqlStore::new(db.clone()), broker.publisher())
            .drain()
            .await?;
        let done = inbox.drain().await?;
        println!(
            "  handled {}, failed {}, duplicates {}",
            done.handled, done.failed, done.duplicates
        );
    }
    println!("bills: {}", bills(&db).await?);
    Ok(())
}

async fn bills(db: &DatabaseConnection) -> Result<i64, DbErr> {
    let statement = Statement::from_string(db.get_database_backend(), "SELECT count(*) AS n FROM bills");
    let row = db.query_one_raw(statement).await?;
    row.map_or(Ok(0), |row| row.try_get("", "n"))
}
