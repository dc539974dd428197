//! `cargo run -p examples --example 15_results`
//!
//! A handler that returns something: a result, which is stored with the inbox row and handed back on a duplicate, and follow-up events, which
//! are recorded in the same transaction. For commands that come as messages and whose sender, hearing nothing, sends again: the answer is
//! the first one, and the work is not done twice. `on_duplicate = reemit` would publish the events again instead. No server is needed.

use std::sync::atomic::{AtomicU32, Ordering};

use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::TransactionTrait as _;
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "room", name = "requested")]
struct RoomRequested {
    #[domain_event(aggregate_id)]
    guest: String,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "booking", name = "made")]
struct BookingMade {
    #[domain_event(aggregate_id)]
    room: u32,
    guest: String,
}

#[derive(Serialize)]
struct Confirmation {
    room: u32,
}

/// The last room that was given away. A second run would give away another.
#[derive(Default)]
struct Hotel {
    given_away: AtomicU32,
}

#[idempotent_handler(consumer = "reception", on_duplicate = result, backoff = "10ms..20ms")]
async fn book(
    event: Event<RoomRequested>,
    metadata: Metadata,
    hotel: HandlerState<Hotel>,
) -> Result<(Reply<Confirmation>, Emit<[BookingMade; 1]>), HandlerError> {
    if metadata.attempt() == 1 {
        // Nothing of a failed attempt is stored or recorded.
        return Err(HandlerError::retry("nobody is at the desk"));
    }
    let room = 100 + hotel.given_away.fetch_add(1, Ordering::SeqCst);
    let made = BookingMade {
        room,
        guest: event.guest.clone(),
    };
    Ok((Reply(Confirmation { room }), Emit([made])))
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("warn")
        .with_writer(std::io::stderr)
        .init();
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);

    let tx = db.begin().await?;
    let guest = "ann".to_owned();
    record(&tx, [RoomRequested { guest }]).await?;
    tx.commit().await?;
    let broker = MemoryBroker::new();
    let relay = Relay::new(SqlStore::new(relay_db), broker.publisher());
    relay.drain().await?;

    // The application decides where the answer goes: to an HTTP callback, or a reply subject. The hook is called after the commit. A crash in between
    // loses the call, and the sender asks again.
    broker.duplicate_deliveries(1);
    let inbox = Inbox::new(db, broker.subscriber())
        .with_state(Hotel::default())
        .on_handled(|done| {
            let result = String::from_utf8_lossy(done.result.unwrap_or_default());
            println!("duplicate: {}, answer: {result}", done.duplicate);
        });
    let report = inbox.drain().await?;
    println!(
        "failed {}, handled {}, duplicates {}",
        report.failed, report.handled, report.duplicates
    );

    println!("follow-up events: {}", relay.drain().await?.published);
    for message in broker
        .messages()
        .iter()
        .filter(|message| message.event_type == "booking.made")
    {
        println!("{}", String::from_utf8_lossy(&message.payload));
    }
    Ok(())
}
