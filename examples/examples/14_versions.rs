//! `cargo run -p examples --example 14_versions`
//!
//! An event has changed twice, and the stream still holds all versions. The handler supports only
//! the last one: upcasters convert older payloads, one version at a time. A missing step is an
//! error at start. No server is needed.

use outbox::inbox::Upcasters;
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase, dead_letters};
use sea_orm::TransactionTrait as _;
use serde::{Deserialize, Serialize};

/// The event's earlier versions. A consumer needs no type for version 1.
mod past {
    use super::{Deserialize, DomainEvent, Serialize};

    #[derive(DomainEvent, Serialize, Deserialize)]
    #[domain_event(aggregate = "order", name = "placed", version = 1)]
    pub struct OrderPlacedV1 {
        #[domain_event(aggregate_id)]
        pub order_id: u32,
        /// The amount in whole euros. `None` was a bug of this version.
        pub euros: Option<i64>,
    }

    #[derive(DomainEvent, Serialize, Deserialize)]
    #[domain_event(aggregate = "order", name = "placed", version = 2)]
    pub struct OrderPlacedV2 {
        #[domain_event(aggregate_id)]
        pub order_id: u32,
        pub cents: i64,
    }
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 3)]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u32,
    cents: i64,
    currency: String,
}

#[idempotent_handler(consumer = "billing")]
async fn bill(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    println!("order {}: {} {}", event.order_id, event.cents, event.currency);
    Ok(())
}

fn one_to_two(upcasters: Upcasters) -> Upcasters {
    // This step converts JSON to JSON, because the Rust type of version 1 may be gone. After an
    // error the message becomes a dead letter.
    upcasters.json("order.placed", 1, |mut payload| {
        let euros = payload["euros"].as_i64().ok_or("an order without a price")?;
        payload["cents"] = (euros * 100).into();
        Ok::<_, &str>(payload)
    })
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let broker = MemoryBroker::new();
    publish(&database, &broker).await?;
    let db = database.connect().await?;

    let incomplete = one_to_two(Upcasters::new());
    let complete = incomplete.clone().step(|old: past::OrderPlacedV2| OrderPlaced {
        order_id: old.order_id,
        cents: old.cents,
        currency: "EUR".to_owned(),
    });
    let refused = Inbox::new(db.clone(), broker.subscriber()).with_upcasters(incomplete);
    println!(
        "starts without the second step: {}",
        refused.drain().await.is_ok()
    );

    let inbox = Inbox::new(db.clone(), broker.subscriber())
        .with_upcasters(complete)
        .with_config(InboxConfig::default().concurrency(1)); // Prints in order.
    inbox.drain().await?;

    // The dead letter is stored as received, in version 1.
    for letter in dead_letters(&db, "billing").await? {
        println!("dead letter: {}", String::from_utf8_lossy(letter.raw_payload()));
    }
    Ok(())
}

async fn publish(database: &TestDatabase, broker: &MemoryBroker) -> anyhow::Result<()> {
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    let tx = db.begin().await?;
    let old = [(1, Some(19)), (2, None)];
    record(
        &tx,
        old.map(|(order_id, euros)| past::OrderPlacedV1 { order_id, euros }),
    )
    .await?;
    record(
        &tx,
        [past::OrderPlacedV2 {
            order_id: 3,
            cents: 1950,
        }],
    )
    .await?;
    let currency = "SEK".to_owned();
    record(
        &tx,
        [OrderPlaced {
            order_id: 4,
            cents: 21_900,
            currency,
        }],
    )
    .await?;
    tx.commit().await?;
    Relay::new(SqlStore::new(relay_db), broker.publisher())
        .drain()
        .await?;
    Ok(())
}
