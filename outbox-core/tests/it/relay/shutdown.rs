//! Tests of how a relay ends: cleanly, or with a database that does not answer.

use outbox_testing::store_types::*;
use outbox_testing::{Ledger, store_methods};
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn hanging_database_does_not_delay_the_shutdown() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let hanging = Hanging(store);
    let relay =
        Relay::new(hanging, broker.publisher()).with_config(quick().shutdown_timeout(Duration::from_secs(2)));
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    let started_at = Instant::now();
    relay.run(shutdown).await.unwrap();
    assert!(
        started_at.elapsed() <= Duration::from_secs(5),
        "{:?}",
        started_at.elapsed()
    );

    let shutdown = CancellationToken::new();
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        shutdown.cancel();
        Instant::now()
    };
    let (report, stopped_at) = tokio::join!(relay.run(shutdown.clone()), stop);
    report.unwrap();
    assert!(
        stopped_at.elapsed() <= Duration::from_secs(5),
        "{:?}",
        stopped_at.elapsed()
    );
}

struct Hanging(MemoryStore);

macro_rules! hang {
    ($self:ident, $method:ident($($argument:expr),*)) => {{
        $(let _ = $argument;)*
        std::future::pending().await
    }};
}

macro_rules! answer {
    ($self:ident, $method:ident($($argument:expr),*)) => { $self.0.$method($($argument),*).await };
}

impl OutboxStore for Hanging {
    store_methods!(self, answer; preflight backlog);
    store_methods!(self, hang; announce relays acquire renew release leave fetch fetch_waiting settle purge pauses
        finish_pauses);
}

#[tokio::test(start_paused = true)]
async fn clean_shutdown_settles_in_flight_messages_and_hands_over() {
    let (store, broker) = (
        MemoryStore::new(),
        MemoryBroker::new().with_latency(Duration::from_secs(1)),
    );
    credit(&store, 100, 3);
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick().window(10));
    let shutdown = CancellationToken::new();
    let stop = async {
        while broker.publishes() < 10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), stop);
    let published = report.unwrap().published;
    assert!((10..=20).contains(&published), "{published}");
    assert_eq!(
        store.rows().iter().filter(|row| row.status == Published).count() as u64,
        published
    );

    let before = Instant::now();
    broker.clear_faults();
    let successor = relay_of(&store, &broker, quick());
    assert_eq!(successor.drain().await.unwrap().duplicates, 0);
    assert!(
        before.elapsed() < quick().lease_ttl,
        "the successor had to wait for the leases"
    );
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn silent_broker_does_not_delay_the_shutdown() {
    let (store, broker) = (
        MemoryStore::new(),
        MemoryBroker::new().with_latency(Duration::from_secs(24 * 3600)),
    );
    credit(&store, 1, 1);
    let relay = Relay::new(store.clone(), broker.publisher())
        .with_config(quick().shutdown_timeout(Duration::from_secs(2)));
    let shutdown = CancellationToken::new();
    let stop = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        shutdown.cancel();
        Instant::now()
    };
    let (report, stopped_at) = tokio::join!(relay.run(shutdown.clone()), stop);
    assert_eq!(report.unwrap().published, 0);
    assert!(
        stopped_at.elapsed() <= Duration::from_secs(3),
        "{:?}",
        stopped_at.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn standby_relay_takes_over_from_a_dead_relay() {
    let (store, broker) = (
        MemoryStore::new(),
        MemoryBroker::new().with_latency(Duration::from_millis(3)),
    );
    credit(&store, 30, 30);
    let shutdown = CancellationToken::new();
    let relay = || {
        let relay = relay_of(&store, &broker, quick());
        let shutdown = shutdown.clone();
        tokio::spawn(async move { relay.run(shutdown).await })
    };
    let first = relay();
    while broker.publishes() < 100 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = relay();
    first.abort();
    let died_at = Instant::now();
    store.until_drained().await;
    assert!(
        died_at.elapsed() < quick().lease_ttl * 2,
        "{:?}",
        died_at.elapsed()
    );
    shutdown.cancel();
    assert!(second.await.unwrap().unwrap().published > 0);
    let ledger = Ledger::of(&store, &broker);
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
}
