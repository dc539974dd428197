//! `cargo run -p examples --example 09_business_key`
//!
//! Strategy `key`: two systems report the same order, each with an event of its own. Their ids differ, so an inbox that goes by ids would bill
//! twice; the order number says that they mean the same. The first event with a number takes effect, later ones are duplicates. Costs what
//! the default costs: a row per key, kept for 15 days. No server is needed.

use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::entity::prelude::*;
use sea_orm::{Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};

/// No unique order number: what counts is that the handler does not run again.
mod invoice {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "bills")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub order_number: String,
        pub cents: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

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
    let invoice = invoice::ActiveModel {
        order_number: Set(order_number.clone()),
        cents: Set(*cents),
        ..Default::default()
    };
    invoice.insert(&tx).await?;
    // A failure rolls back the bill and the key with it, so the number is still free for the next attempt.
    if order_number == "N-2" && metadata.attempt() == 1 {
        return Err(HandlerError::retry("the printer is out of paper"));
    }
    println!("billed {order_number}, as {} says", event.report);
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
    db.get_schema_builder()
        .register(invoice::Entity)
        .apply(&db)
        .await?;
    let broker = MemoryBroker::new();
    let relay = Relay::new(SqlStore::new(relay_db), broker.publisher());
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
        relay.drain().await?;
        let done = inbox.drain().await?;
        println!(
            "  handled {}, failed {}, duplicates {}",
            done.handled, done.failed, done.duplicates
        );
    }
    println!("bills: {}", invoice::Entity::find().count(&db).await?);
    Ok(())
}
