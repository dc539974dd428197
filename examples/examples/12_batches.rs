//! `cargo run -p examples --example 12_batches`
//!
//! Many messages in one transaction, for handlers with less work than a commit. `statistics`
//! receives several events at once and writes them with one statement. (With `batch`, a handler of
//! one event runs for several messages in one transaction.) If a message fails, the transaction is
//! rolled back and each message is handled alone, so that only the failing message becomes a dead
//! letter. No server is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase, dead_letters};
use sea_orm::entity::prelude::*;
use sea_orm::{ExprTrait as _, Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};

mod total {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "totals")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: i32,
        pub units: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "product", name = "sold")]
struct ProductSold {
    #[domain_event(aggregate_id)]
    product: u32,
    units: i64,
}

#[derive(Clone, Default)]
struct Runs {
    count: Arc<AtomicUsize>,
}

/// The events keep the order of their aggregates. An optional `Vec<Metadata>` has the same order.
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
    total::Entity::update_many()
        .col_expr(total::Column::Units, Expr::col(total::Column::Units).add(units))
        .exec(&tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    db.get_schema_builder().register(total::Entity).apply(&db).await?;
    let nothing = total::ActiveModel {
        id: Set(1),
        units: Set(0),
    };
    nothing.insert(&db).await?;
    let broker = MemoryBroker::new();
    broker.duplicate_deliveries(usize::MAX); // Every message comes twice.
    let relay = Relay::new(SqlStore::new(relay_db), broker.publisher());

    for (what, bad) in [("100 sales", None), ("100 sales, one of them bad", Some(42))] {
        let tx = db.begin().await?;
        let sales = (0..100).map(|product| ProductSold {
            product,
            units: if bad == Some(product) { -1 } else { 1 },
        });
        record(&tx, sales.collect::<Vec<_>>()).await?;
        tx.commit().await?;
        relay.drain().await?;

        let runs = Runs::default();
        let inbox = Inbox::new(db.clone(), broker.subscriber())
            // All runs of `count` write the same row, so concurrent runs would wait for each other.
            .with_config(InboxConfig::default().attempts_max(5).concurrency(1))
            .with_state(runs.clone());
        let report = inbox.drain().await?;
        let total = total::Entity::find_by_id(1).one(&db).await?;
        let counted = total.map_or(0, |total| total.units);
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
    Ok(())
}
