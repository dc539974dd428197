//! `cargo run -p examples --example 01_quickstart`
//!
//! The whole way of an event in one process and without any server: an order is saved together with its event, the relay
//! publishes the event, and a handler takes effect once although the event is delivered twice. The database is a SQLite
//! file, and the broker is in memory.

use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::entity::prelude::*;
use sea_orm::{ExprTrait as _, Set};
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

mod stock {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "stock")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub product: String,
        pub units: i32,
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

/// Runs in a transaction that also notes that the message was handled. `?` rolls both back, and the message is delivered again.
#[idempotent_handler(consumer = "inventory")]
async fn reserve_stock(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    stock::Entity::update_many()
        .col_expr(
            stock::Column::Units,
            Expr::col(stock::Column::Units).sub(event.quantity),
        )
        .filter(stock::Column::Product.eq(&event.product))
        .exec(&tx)
        .await?;
    println!(
        "reserved {} {} for order {}",
        event.quantity, event.product, event.order_id
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("warn")
        .with_writer(std::io::stderr)
        .init();
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    create_tables(&db).await?;

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

    // 2. The relay publishes what was committed. A service calls `run` instead, until shutdown.
    let broker = MemoryBroker::new();
    let report = Relay::new(SqlStore::new(relay_db), broker.publisher())
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
    let left = stock::Entity::find_by_id("chai").one(&db).await?;
    println!("chai in stock: {}", left.map_or(0, |chai| chai.units));
    Ok(())
}

/// A service makes these tables in migrations. The tables of outbox and inbox exist already: `TestDatabase` calls `outbox::migrate`.
async fn create_tables(db: &DatabaseConnection) -> Result<(), DbErr> {
    let tables = db.get_schema_builder();
    let tables = tables.register(order::Entity).register(stock::Entity);
    tables.apply(db).await?;
    let chai = stock::ActiveModel {
        product: Set("chai".to_owned()),
        units: Set(39),
    };
    chai.insert(db).await?;
    Ok(())
}
