//! Tests of `Relay::drain`: publishes the due messages and ends.

use std::future::poll_fn;
use std::pin::pin;

use outbox_testing::Ledger;

use super::watched::Watched;
use super::*;

/// If a drain gave partitions to a relay that starts later, the first of two drains would give them
/// to the second drain, which has ended.
#[tokio::test(start_paused = true)]
async fn drain_keeps_its_partitions_when_another_relay_starts() {
    let store = MemoryStore::new();
    let broker = MemoryBroker::new().with_latency(Duration::from_millis(50));
    credit(&store, 100, 50);
    let drain = relay_of(&store, &broker, quick().window(50));
    let other = relay_of(&store, &broker, quick());
    let shutdown = CancellationToken::new();
    let run = async {
        until("half of it", || broker.publishes() > 2000).await;
        other.run(shutdown.clone()).await.unwrap()
    };
    let drain = async {
        let report = drain.drain().await.unwrap();
        assert_eq!(report.published, 5000);
        assert!(store.rows().iter().all(|row| row.status == Published));
        shutdown.cancel();
    };
    let ((), report) = tokio::join!(drain, run);
    assert_eq!(report.published, 0, "the other one has nothing to do");
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_a_slow_database_without_busy_loop() {
    let store = MemoryStore::new();
    let broker = MemoryBroker::new().with_latency(Duration::from_millis(100));
    credit(&store, 16, 1);
    let relay = Relay::new(
        Watched::slow_to_announce(&store, Duration::from_secs(2)),
        broker.publisher(),
    )
    .with_config(quick().window(1));
    let mut drain = pin!(relay.drain());
    let mut polls = 0;
    let report = poll_fn(|cx| {
        polls += 1;
        assert!(polls < 10_000, "it turns its loop and waits for nothing");
        drain.as_mut().poll(cx)
    });
    assert_eq!(report.await.unwrap().published, 16);
}

/// Repeated failures must not restart the time limit of the shutdown.
#[tokio::test(start_paused = true)]
async fn drain_ends_although_the_database_rejects_verdicts() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 16, 1);
    let watched = Watched::new(&store);
    (0..10_000).for_each(|_| watched.silence_one("settle", 0));
    let relay = Relay::new(watched, broker.publisher()).with_config(quick());
    let bound = Duration::from_secs(60);
    let drained = tokio::time::timeout(bound, relay.drain()).await;
    let error = drained.expect("a drain ends with the first trouble").unwrap_err();
    assert!(error.to_string().contains("store"), "{error}");
    assert!(store.rows().iter().all(|row| row.status == Pending));
}
