//! Tests of how a relay ends: cleanly, or with a database that does not answer.

use outbox_testing::Ledger;
use tokio::time::Instant;

use super::watched::Watched;
use super::*;

#[tokio::test(start_paused = true)]
async fn hanging_database_does_not_delay_the_shutdown() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let watched = Watched::new(&store);
    watched.silence_all(true);
    let relay =
        Relay::new(watched, broker.publisher()).with_config(quick().shutdown_timeout(Duration::from_secs(2)));
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
