//! `cargo run -p examples --example 20_calling_a_carrier`
//!
//! A consumer that calls an external system: it starts with new messages, limits its concurrency,
//! respects the requested delay, reports its backlog, and can be paused by an operator. No server
//! is needed.

use std::sync::Mutex;
use std::time::Duration;

use outbox::inbox::{Consumers, PausedConsumers, StartAt};
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::Set;
use sea_orm::entity::prelude::*;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

mod parcel {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "parcels")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub order_id: i32,
        pub label: Uuid,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
    // The address is masked in output of messages and dead letters.
    #[domain_event(sensitive)]
    phone: String,
}

/// Simulates the carrier. It answers the first calls with 429 and `Retry-After`, and a known key
/// with the first label.
struct Carrier {
    refusals: Mutex<u32>,
}

impl Carrier {
    fn book(&self, key: Uuid) -> Result<Uuid, Duration> {
        let Ok(mut refusals) = self.refusals.lock() else {
            return Err(Duration::from_secs(1));
        };
        if *refusals > 0 {
            *refusals -= 1;
            return Err(Duration::from_millis(20));
        }
        Ok(key)
    }
}

#[idempotent_handler(consumer = "carrier")]
async fn book(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    key: StableKey,
    carrier: HandlerState<Carrier>,
) -> Result<(), HandlerError> {
    // If the process dies before the commit, the next attempt sends the same key.
    let label = match carrier.book(key.step("book")) {
        Ok(label) => label,
        Err(wait) => return Err(HandlerError::retry_after(wait).because("the carrier answers 429")),
    };
    let parcel = parcel::ActiveModel {
        order_id: Set(event.order_id),
        label: Set(label),
    };
    parcel.insert(&tx).await?;
    println!("order {}: booked", event.order_id);
    Ok(())
}

/// Places an order. After a deadlock or a serialization failure the closure is called again.
async fn place(db: &OutboxConnection, order_id: i32) -> anyhow::Result<()> {
    db.transaction(async |tx| {
        let phone = "+49 170 1234567".to_owned();
        record(&tx, [OrderPlaced { order_id, phone }]).await?;
        Ok(())
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    db.get_schema_builder()
        .register(parcel::Entity)
        .apply(&db)
        .await?;
    // The default retention of a stream, so that the inbox logs no warning.
    let broker = MemoryBroker::new().with_retention(Some(Duration::from_secs(14 * 24 * 3600)));
    let relay = Relay::new(SqlStore::new(relay_db), broker.publisher());
    let shop = OutboxConnection::new(db.clone(), OutboxConfig::default());

    // Orders placed before this consumer existed were booked in another way.
    place(&shop, 1).await?;
    relay.drain().await?;

    let inbox = Inbox::new(db.clone(), broker.subscriber())
        // Without the handler `carrier`, the program does not start: the linker omits an
        // unreferenced crate.
        .expect_handlers(["carrier"])
        .with_start("carrier", StartAt::New)
        .with_config(InboxConfig::default().concurrency(2))
        .with_state(Carrier {
            refusals: Mutex::new(2),
        });
    println!("handled at the start: {}", inbox.drain().await?.handled);

    place(&shop, 2).await?;
    relay.drain().await?;
    let report = inbox.drain().await?;
    println!("deferred: {}, failed: {}", report.deferred, report.failed);

    // An operator can use `PausedConsumers` in any process with access to the database. All
    // processes of the consumer pause within two seconds.
    let paused = PausedConsumers::new(db.clone());
    paused.pause("carrier", "no parcels before Monday").await?;
    place(&shop, 3).await?;
    relay.drain().await?;
    println!("handled during the pause: {}", inbox.drain().await?.handled);
    for consumer in paused.list().await? {
        println!("paused: {}, {}", consumer.consumer, consumer.reason);
    }
    let lag = Consumers::new(db.clone(), broker.subscriber())
        .lag("carrier")
        .await?;
    let waiting = lag.on_stream.map_or(0, |standing| standing.undelivered);
    println!("pending during the pause: {waiting}");
    paused.resume("carrier").await?;
    inbox.drain().await?;
    Ok(())
}
