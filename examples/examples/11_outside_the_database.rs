//! `cargo run -p examples --example 11_outside_the_database`
//!
//! Strategy `external`: the effect is outside the service's database, and a deduplication store
//! records finished effects. If the process dies between the effect and the record, the effect is
//! repeated. So the handler sends a stable key, with which the other system drops the copy.
//!
//! No server is needed: the store is in memory. In production use
//! `outbox::inbox::redis::RedisDedupStore` (feature `redis`), which expires its entries.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use outbox::core::{MessageId, Publisher as _};
use outbox::inbox::DedupKey;
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, MemoryDedupStore, TestDatabase};
use sea_orm::TransactionTrait as _;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u32,
    cents: i64,
}

/// Simulates a payment provider: a known key returns the first payment.
#[derive(Default)]
struct Payments(Mutex<HashMap<Uuid, i64>>);

impl Payments {
    fn charge(&self, key: Uuid, cents: i64) -> bool {
        let mut payments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        payments.insert(key, cents).is_none()
    }
}

/// The handler takes no `Tx`, so no transaction is open while the provider is called.
#[idempotent_handler(consumer = "payments", strategy = external, backoff = "10ms..20ms")]
async fn charge(
    event: Event<OrderPlaced>,
    key: StableKey,
    payments: HandlerState<Payments>,
) -> Result<(), HandlerError> {
    // One key per step, if a handler makes several calls.
    let new = payments.charge(key.step("charge"), event.cents);
    println!("order {}: charged (new: {new})", event.order_id);
    if new {
        // The payment succeeded, but the attempt fails. The next attempt sends the same key.
        return Err(HandlerError::retry("the answer was lost"));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    // Failures and dead letters are stored in the database with every strategy.
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);

    let tx = db.begin().await?;
    record(
        &tx,
        [OrderPlaced {
            order_id: 1,
            cents: 1999,
        }],
    )
    .await?;
    tx.commit().await?;
    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(relay_db), broker.publisher())
        .drain()
        .await?;
    let store = MemoryDedupStore::new();
    let inbox = Inbox::new(db, broker.subscriber())
        .with_state(Payments::default())
        .with_dedup_store(store.clone());

    println!("a failure after the payment:");
    inbox.drain().await?;

    println!("a copy:");
    let mut copy = broker.messages().remove(0);
    copy.id = MessageId::fresh();
    broker.publisher().publish(&copy).await?;
    let report = inbox.drain().await?;
    println!("dropped {} duplicate", report.duplicates);

    println!("a copy, after a crash before the record:");
    store.forget(&DedupKey::new("payments", copy.event_id));
    copy.id = MessageId::fresh();
    broker.publisher().publish(&copy).await?;
    inbox.drain().await?;
    Ok(())
}
