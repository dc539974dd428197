//! `cargo run -p examples --example 07_natural`
//!
//! Strategy `natural`: the handler says that it may run any number of times, and the inbox keeps no books but of failures. Right for effects that replace
//! rather than add: a projection that holds the last state. The fastest strategy, and the only one whose promise is the handler's own:
//! here a statement that compares versions. No server is needed.

use outbox_core::testing::MemoryBroker;
use outbox_core::{DomainEvent, MessageId, Publisher, Relay};
use outbox_inbox::{Event, HandlerError, Inbox, Metadata, Tx, idempotent_handler};
use outbox_sea_orm::{SqlStore, record};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, Statement, TransactionTrait};
use serde::{Deserialize, Serialize};

/// Says what is, not what has changed: that makes a natural handler possible.
#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "product", name = "priced")]
struct ProductPriced {
    #[domain_event(aggregate_id)]
    product: u32,
    cents: i64,
}

/// A copy sets what is set. One that comes late, behind a newer price, finds a higher version and changes nothing.
#[idempotent_handler(consumer = "price_list", strategy = natural)]
async fn project(event: Event<ProductPriced>, metadata: Metadata, tx: Tx<'_>) -> Result<(), HandlerError> {
    let version = metadata.sequence().unwrap_or_default();
    let sql = format!(
        "INSERT INTO prices (product, cents, version) VALUES ({}, {}, {version})
         ON CONFLICT (product) DO UPDATE SET cents = excluded.cents, version = excluded.version
         WHERE prices.version < excluded.version",
        event.product, event.cents
    );
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1); // Each connection to `:memory:` is a database of its own.
    let db = Database::connect(options).await?;
    db.execute_unprepared(
        "CREATE TABLE prices (product INTEGER PRIMARY KEY, cents INTEGER NOT NULL, version INTEGER NOT NULL)",
    )
    .await?;
    outbox_sea_orm::migrate(&db).await?;
    outbox_inbox::migrate(&db).await?;

    let tx = db.begin().await?;
    let prices = [(1, 1999), (2, 450), (1, 1799)];
    record(
        &tx,
        prices.map(|(product, cents)| ProductPriced { product, cents }),
    )
    .await?;
    tx.commit().await?;
    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(db.clone()), broker.publisher())
        .drain()
        .await?;

    // Every message comes twice, and every one runs twice.
    broker.duplicate_deliveries(usize::MAX);
    let inbox = Inbox::new(db.clone(), broker.subscriber());
    let report = inbox.drain().await?;
    println!(
        "handled {}, dropped {} duplicates",
        report.handled, report.duplicates
    );
    print(&db).await?;

    // The first price once more, as after a replay: it runs, and the newer one stays.
    broker.duplicate_deliveries(0);
    let mut late = broker.messages().remove(0);
    late.id = MessageId::fresh();
    broker.publisher().publish(&late).await?;
    println!("late: handled {}", inbox.drain().await?.handled);
    print(&db).await
}

async fn print(db: &DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
    let sql = "SELECT product, cents, version FROM prices ORDER BY product";
    let statement = Statement::from_string(db.get_database_backend(), sql);
    for row in db.query_all_raw(statement).await? {
        let number = |column| row.try_get::<i64>("", column);
        let (product, cents, version) = (number("product")?, number("cents")?, number("version")?);
        println!("product {product}: {cents} (version {version})");
    }
    Ok(())
}
