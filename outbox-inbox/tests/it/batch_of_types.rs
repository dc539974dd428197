//! Handlers of an enum.

use std::sync::{Arc, Mutex};

use outbox_core::DomainEvent;
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{Event, HandlerError, HandlerState, Router, Tx, idempotent_handler};
use outbox_testing::MemoryBroker;
use sea_orm::ConnectionTrait as _;
use serde::{Deserialize, Serialize};

use crate::on_every_backend;
use crate::runtime::within;
use crate::support::{TestDb, publish, slow};

#[derive(Debug, Clone, PartialEq, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "till")]
#[serde(untagged)]
enum TillEvent {
    #[domain_event(name = "paid")]
    Paid {
        #[domain_event(aggregate_id)]
        till: u64,
        cents: i64,
    },
    #[domain_event(name = "refunded")]
    Refunded {
        #[domain_event(aggregate_id)]
        till: u64,
        refund_cents: i64,
    },
}

type Calls = Mutex<Vec<Vec<TillEvent>>>;

#[idempotent_handler(consumer = "tills", batch = 100)]
async fn count_cash(
    events: Vec<Event<TillEvent>>,
    tx: Tx<'_>,
    calls: HandlerState<Arc<Calls>>,
) -> Result<(), HandlerError> {
    calls
        .lock()
        .unwrap()
        .push(events.iter().map(|event| event.0.clone()).collect());
    let change = |event: &Event<TillEvent>| match event.0 {
        TillEvent::Paid { cents, .. } => cents,
        TillEvent::Refunded { refund_cents, .. } => -refund_cents,
    };
    let cents: i64 = events.iter().map(change).sum();
    let statement = format!("INSERT INTO cash (cents) VALUES ({cents})");
    tx.execute_unprepared(&statement).await?;
    Ok(())
}

async fn enum_handler_batches_events_of_all_types(test: TestDb) {
    test.execute("CREATE TABLE cash (cents BIGINT)").await;
    let broker = MemoryBroker::new();
    let mut published = Vec::new();
    for cents in 1..=5 {
        for till in 1..=2 {
            let refund_cents = 100 * cents;
            for event in [
                TillEvent::Paid { till, cents },
                TillEvent::Refunded { till, refund_cents },
            ] {
                publish(&broker, &event).await;
                published.push(event);
            }
        }
    }
    let calls = Arc::new(Calls::default());
    let inbox = test
        .inbox(&broker, Router::new().handler::<count_cash>())
        .with_config(slow().concurrency(1))
        .with_state(calls.clone());
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!(report.handled, 20, "{report:?}");
    assert_eq!(test.int("SELECT cents FROM cash").await, -2_970);
    assert_eq!(test.int("SELECT count(*) FROM cash").await, 1);
    let calls = calls.lock().unwrap();
    for till in 1..=2 {
        let of_till = |events: &[TillEvent]| -> Vec<_> {
            let own = |event: &&TillEvent| matches!(event, TillEvent::Paid { till: of, .. } | TillEvent::Refunded { till: of, .. } if *of == till);
            events.iter().filter(own).cloned().collect()
        };
        assert_eq!(of_till(&calls[0]), of_till(&published), "till {till}");
    }
}

/// Untagged: serde decodes each payload as the first variant.
#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "door")]
#[serde(untagged)]
enum DoorEvent {
    #[domain_event(name = "opened")]
    Opened {
        #[domain_event(aggregate_id)]
        door: u64,
    },
    #[domain_event(name = "painted")]
    Painted {
        #[domain_event(aggregate_id)]
        door: u64,
        colour: String,
    },
}

#[idempotent_handler(consumer = "doors", batch = 10)]
async fn count_openings(events: Vec<Event<DoorEvent>>, tx: Tx<'_>) -> Result<(), HandlerError> {
    for event in &events {
        if let DoorEvent::Opened { door } = event.0 {
            let statement = format!("INSERT INTO openings (door) VALUES ({door})");
            tx.execute_unprepared(&statement).await?;
        }
    }
    Ok(())
}

async fn payload_of_another_variant_is_dead_lettered(test: TestDb) {
    test.execute("CREATE TABLE openings (door BIGINT)").await;
    let broker = MemoryBroker::new();
    let colour = "green".to_owned();
    publish(&broker, &DoorEvent::Opened { door: 1 }).await;
    publish(&broker, &DoorEvent::Painted { door: 2, colour }).await;
    let inbox = test.inbox(&broker, Router::new().handler::<count_openings>());
    let report = within(inbox.with_config(slow()).drain()).await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (1, 1), "{report:?}");
    assert_eq!(test.int("SELECT count(*) FROM openings").await, 1);
    assert_eq!(test.int("SELECT max(door) FROM openings").await, 1);
    let letters = dead_letters(&test.db, "doors").await.unwrap();
    let error = &letters[0].error;
    assert!(
        error.contains("`door.painted` version 1 decodes as `")
            && error.contains("DoorEvent::Opened`")
            && error.contains("type"),
        "{error}"
    );
}

on_every_backend!(
    enum_handler_batches_events_of_all_types,
    payload_of_another_variant_is_dead_lettered,
);
