//! Tests of consumer settings, pauses, and handlers that defer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::inbox::PausedConsumers;
use outbox::nats::async_nats::jetstream;
use outbox::prelude::*;
use outbox::testing::TestDatabase;
use outbox::testing::{backend_url, eventually};
use sea_orm::{DatabaseConnection, TransactionTrait as _};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::place::{SOON, is_paused};

/// The inbox reports progress three times per `ack_wait`, so a busy machine may stall for two
/// thirds of it.
const ACK_WAIT: Duration = Duration::from_secs(15);

/// Delay of a parcel: longer than `ack_wait`, and long enough for the process to read the pause,
/// which it polls once a second.
const NOT_READY: Duration = Duration::from_secs(17);

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "parcel", name = "packed")]
struct ParcelPacked {
    #[domain_event(aggregate_id)]
    parcel: u32,
}

#[derive(Debug, Default)]
struct Carrier {
    asked: Mutex<Vec<u32>>,
    running: AtomicU32,
    most: AtomicU32,
}

impl Carrier {
    fn asked(&self, parcel: u32) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|asked| **asked == parcel).count()
    }

    fn all(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

/// Defers parcel 1 at first.
#[idempotent_handler(consumer = "carrier", strategy = natural)]
async fn ask(event: Event<ParcelPacked>, carrier: HandlerState<Arc<Carrier>>) -> Result<(), HandlerError> {
    let running = carrier.running.fetch_add(1, Ordering::SeqCst) + 1;
    carrier.most.fetch_max(running, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(20)).await;
    carrier.running.fetch_sub(1, Ordering::SeqCst);
    carrier.asked.lock().unwrap().push(event.parcel);
    if event.parcel == 1 && carrier.asked(1) == 1 {
        return Err(HandlerError::retry_after(NOT_READY));
    }
    Ok(())
}

async fn pack(db: &DatabaseConnection, parcels: impl IntoIterator<Item = u32>) {
    let tx = db.begin().await.unwrap();
    let events: Vec<_> = parcels
        .into_iter()
        .map(|parcel| ParcelPacked { parcel })
        .collect();
    record(&tx, events).await.unwrap();
    tx.commit().await.unwrap();
}

/// Each message is delivered once, although a deferred message and a paused message wait longer
/// than `ack_wait`.
async fn settings_pauses_and_deferrals_hold(variable: &'static str) {
    let Some(url) = backend_url(variable) else {
        return;
    };
    let name = format!("consumers-{}", Uuid::now_v7().simple());
    let stream = EventStream::new(&name).with_prefix(&name).unwrap();
    let client = stream.connect(&url).await.unwrap();
    stream.provision(&client).await.unwrap();
    let database = TestDatabase::create().await.unwrap();
    let db = database.connect().await.unwrap();
    let relay = stream.relay(database.connect().await.unwrap(), client.clone());
    let carrier = Arc::new(Carrier::default());
    let inbox = stream
        .inbox(db.clone(), client.clone())
        .with_consumers(["carrier"])
        .with_config(
            InboxConfig::default()
                .ack_wait(ACK_WAIT)
                .handler_timeout(ACK_WAIT / 2)
                .ack_pending_max(777)
                .concurrency(2),
        )
        .with_state(carrier.clone());
    let (health, shutdown) = (inbox.health(), CancellationToken::new());
    let token = shutdown.clone();
    let run = tokio::spawn(async move { inbox.run(token).await });

    pack(&db, 1..=12).await;
    relay.drain().await.unwrap();
    eventually("the first runs", async || carrier.all() == 12).await;
    let pauses = PausedConsumers::new(db.clone());
    pauses.pause("carrier", "stocktaking").await.unwrap();
    eventually("the pause", async || is_paused(&health, "carrier")).await;
    pack(&db, [100]).await;
    relay.drain().await.unwrap();
    // Only progress reports have kept parcel 1 from redelivery for longer than `ack_wait`.
    tokio::time::sleep(NOT_READY).await;
    assert_eq!((carrier.asked(1), carrier.asked(100)), (1, 0));
    pauses.resume("carrier").await.unwrap();
    eventually("the rest", async || {
        carrier.asked(1) == 2 && carrier.asked(100) == 1
    })
    .await;
    shutdown.cancel();
    let report = tokio::time::timeout(SOON, run).await.unwrap().unwrap().unwrap();
    assert_eq!(
        (report.handled, report.deferred, report.failed, report.received),
        (13, 1, 0, 13),
        "{report:?}"
    );
    assert_eq!(carrier.most.load(Ordering::SeqCst), 2);

    let jetstream = jetstream::new(client);
    let info = jetstream.get_stream(&name).await.unwrap();
    let info = info.consumer_info("carrier").await.unwrap();
    assert_eq!(
        (info.config.ack_wait, info.config.max_ack_pending),
        (ACK_WAIT, 777)
    );
    assert_eq!((info.delivered.consumer_sequence, info.num_ack_pending), (13, 0));
    jetstream.delete_stream(&name).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_pauses_and_deferrals_hold_on_the_newest_server() {
    settings_pauses_and_deferrals_hold("OUTBOX_TEST_NATS_URL").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_pauses_and_deferrals_hold_on_the_oldest_server() {
    settings_pauses_and_deferrals_hold("OUTBOX_TEST_NATS_OLD_URL").await;
}
