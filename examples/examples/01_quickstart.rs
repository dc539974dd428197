//! `cargo run -p examples --example 01_quickstart`
//!
//! The whole way of an event in one process and without any server: an order is saved together with its event, the relay
//! publishes the event, and a handler takes effect once although the event is delivered twice. The database is SQLite
//! in memory, and so is the broker.

use outbox_core::testing::MemoryBroker;
use outbox_core::{DomainEvent, Relay};
use outbox_inbox::{Event, HandlerError, Inbox, Tx, idempotent_handler};
use outbox_sea_orm::{SaveWithEvents, SqlStore};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, Set};
use serde::{Deserialize, Serialize};

mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub product: String,
        pub quantity: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 1)]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
    product: String,
    quantity: i32,
}

/// Runs in a transaction that also notes that the message was handled. `?` rolls both back, and the message comes again.
#[idempotent_handler(consumer = "inventory")]
async fn reserve_stock(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let sql = format!(
        "UPDATE stock SET units = units - {} WHERE product = 'chai'",
        event.quantity
    );
    tx.execute_unprepared(&sql).await?;
    println!(
        "reserved {} {} for order {}",
        event.quantity, event.product, event.order_id
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1); // Each connection to `:memory:` is a database of its own.
    let db = Database::connect(options).await?;
    db.execute_unprepared(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, product TEXT NOT NULL, quantity INTEGER NOT NULL);
         CREATE TABLE stock (product TEXT PRIMARY KEY, units INTEGER NOT NULL);
         INSERT INTO stock VALUES ('chai', 39)",
    )
    .await?;
    outbox_sea_orm::migrate(&db).await?;
    outbox_inbox::migrate(&db).await?;

    // 1. Order and event in one transaction. The closure sees the key that the database generated.
    let order = order::ActiveModel {
        product: Set("chai".to_owned()),
        quantity: Set(2),
        ..Default::default()
    }
    .insert_with_events(&db, |order| {
        [OrderPlaced {
            order_id: order.id,
            product: order.product.clone(),
            quantity: order.quantity,
        }]
    })
    .await?;
    println!("saved order {}", order.id);

    // 2. The relay publishes what was committed. A service would `run` it until shutdown instead.
    let broker = MemoryBroker::new();
    let report = Relay::new(SqlStore::new(db.clone()), broker.publisher())
        .drain()
        .await?;
    println!("published {} message", report.published);

    // 3. The consumer. The broker delivers the message twice; it takes effect once.
    broker.duplicate_deliveries(1);
    let report = Inbox::new(db.clone(), broker.subscriber()).drain().await?;
    println!(
        "handled {}, dropped {} duplicate",
        report.handled, report.duplicates
    );
    println!("chai in stock: {}", stock(&db).await?);
    Ok(())
}

async fn stock(db: &DatabaseConnection) -> Result<i32, sea_orm::DbErr> {
    let statement = sea_orm::Statement::from_string(db.get_database_backend(), "SELECT units FROM stock");
    let row = db.query_one_raw(statement).await?;
    row.map_or(Ok(0), |row| row.try_get("", "units"))
}
