//! `cargo run -p examples --example 05_testing_your_service`
//!
//! The tests of a service: recorded events, a broker outage, and the effects of the consumer. No
//! server, no sleep, no mock.

use outbox::core::RelayError;
use outbox::prelude::*;
use outbox::testing::{Harness, MemoryBroker, Outcome, TestDatabase, dead_letters, handled, recorded_events};
use sea_orm::{DatabaseConnection, TransactionTrait};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
    units: i64,
}

/// The code under test: accepts or rejects an order.
async fn place_order(db: &DatabaseConnection, order_id: u64, units: i64) -> anyhow::Result<()> {
    let tx = db.begin().await?;
    record(&tx, [OrderPlaced { order_id, units }]).await?;
    if units > 10 {
        anyhow::bail!("too many units"); // Dropping the transaction rolls it back.
    }
    tx.commit().await?;
    Ok(())
}

struct Warehouse {
    capacity: i64,
}

#[idempotent_handler(consumer = "warehouse")]
async fn pack(event: Event<OrderPlaced>, warehouse: HandlerState<Warehouse>) -> Result<(), HandlerError> {
    if event.units > warehouse.capacity {
        return Err(HandlerError::fatal(std::io::Error::other("does not fit")));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);

    // Read recorded events. A rejected order leaves none.
    place_order(&db, 1, 2).await?;
    assert!(place_order(&db, 2, 11).await.is_err());
    assert_eq!(
        recorded_events::<OrderPlaced>(&db).await?,
        [OrderPlaced {
            order_id: 1,
            units: 2
        }]
    );
    println!("one order recorded, no event of the rejected order");

    // Make the broker fail. Nothing is lost, and nothing becomes a dead letter.
    let broker = MemoryBroker::new();
    broker.set_down(true);
    let relay = Relay::new(SqlStore::new(relay_db), broker.publisher());
    assert!(matches!(relay.drain().await, Err(RelayError::Broker(_))));
    broker.set_down(false);
    assert_eq!(relay.drain().await?.published, 1);
    println!("published after the outage");

    // Drain until idle, and check the handled messages.
    place_order(&db, 3, 9).await?;
    relay.drain().await?;
    let inbox = Inbox::new(db.clone(), broker.subscriber()).with_state(Warehouse { capacity: 5 });
    inbox.drain().await?;
    assert_eq!(handled(&db, "warehouse").await?.len(), 1);
    let dead = dead_letters(&db, "warehouse").await?;
    println!("handled one order, one dead letter: {}", dead[0].error);

    // Run a single handler, with its real deduplication and without a broker.
    let harness = Harness::new(db).with_state(Warehouse { capacity: 5 });
    let message = harness.message(&OrderPlaced {
        order_id: 4,
        units: 1,
    })?;
    assert_eq!(harness.deliver_message::<pack>(&message).await?, Outcome::Handled);
    assert_eq!(
        harness.deliver_message::<pack>(&message).await?,
        Outcome::Duplicate
    );
    println!("the second delivery was a duplicate");
    Ok(())
}
