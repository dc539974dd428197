//! `cargo run -p examples --example 07_natural`
//!
//! Strategy `natural`: the handler may run any number of times, and the inbox records nothing but failures. Right for effects that replace
//! rather than add: a projection that holds the last state. The fastest strategy, and the only one whose promise is the handler's own:
//! here a statement that compares versions. No server is needed.

use outbox::core::{MessageId, Publisher as _};
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::entity::prelude::*;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ExprTrait as _, QueryOrder as _, Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};

mod price {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "prices")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub product: u32,
        pub cents: i64,
        pub version: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// The event holds the new price and not the difference, so a handler may apply it twice.
#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "product", name = "priced")]
struct ProductPriced {
    #[domain_event(aggregate_id)]
    product: u32,
    cents: i64,
}

/// A copy writes the same values again. A copy that comes late, after a newer price, finds a higher version and changes nothing.
#[idempotent_handler(consumer = "price_list", strategy = natural)]
async fn project(event: Event<ProductPriced>, metadata: Metadata, tx: Tx<'_>) -> Result<(), HandlerError> {
    let version = metadata.sequence().unwrap_or_default();
    let version = i64::try_from(version).map_err(HandlerError::fatal)?;
    let row = price::ActiveModel {
        product: Set(event.product),
        cents: Set(event.cents),
        version: Set(version),
    };
    let newer = OnConflict::column(price::Column::Product)
        .update_columns([price::Column::Cents, price::Column::Version])
        .action_and_where(Expr::col((price::Entity, price::Column::Version)).lt(version))
        .to_owned();
    price::Entity::insert(row)
        .on_conflict(newer)
        .exec_without_returning(&tx)
        .await?;
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
    db.get_schema_builder().register(price::Entity).apply(&db).await?;

    let tx = db.begin().await?;
    let prices = [(1, 1999), (2, 450), (1, 1799)];
    record(
        &tx,
        prices.map(|(product, cents)| ProductPriced { product, cents }),
    )
    .await?;
    tx.commit().await?;
    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(relay_db), broker.publisher())
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

async fn print(db: &DatabaseConnection) -> Result<(), outbox::Failure> {
    let prices = price::Entity::find().order_by_asc(price::Column::Product);
    for price in prices.all(db).await? {
        println!(
            "product {}: {} (version {})",
            price.product, price.cents, price.version
        );
    }
    Ok(())
}
