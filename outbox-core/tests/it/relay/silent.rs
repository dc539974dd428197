//! Tests of a silent database connection: calls are neither rejected nor answered.

use outbox_core::Health;
use outbox_testing::Ledger;
use tokio::time::Instant;

use super::pause::pause;
use super::watched::Watched;
use super::*;

/// Store calls of a relay. The number is how often the call is answered before the store stays
/// silent.
const CALLS: [(&str, usize); 12] = [
    ("preflight", 0),
    ("announce", 0),
    ("announce", 2),
    ("acquire", 0),
    ("renew", 1),
    ("pauses", 0),
    ("pauses", 2),
    ("finish_pauses", 0),
    ("fetch", 1),
    ("fetch_waiting", 1),
    ("settle", 1),
    ("backlog", 0),
];

async fn pause_for(call: &str, store: &MemoryStore) {
    if call == "finish_pauses" {
        pause(store, Some("account"), Some(Duration::from_secs(1))).await;
    }
}

const SOON: Duration = Duration::from_secs(60);

fn watched_relay(
    watched: &Watched,
    broker: &MemoryBroker,
    config: RelayConfig,
) -> Relay<Watched, MemoryPublisher> {
    Relay::new(watched.clone(), broker.publisher()).with_config(config)
}

async fn run_watched(relay: &Relay<Watched, MemoryPublisher>, scenario: impl Future<Output = ()>) {
    let _alone = outbox_core::wake::isolate();
    let shutdown = CancellationToken::new();
    let scenario = async {
        scenario.await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unanswered_call_stops_a_lone_relay_only_briefly() {
    for (call, answered) in CALLS {
        let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
        let watched = Watched::new(&store);
        watched.silence_one(call, answered);
        pause_for(call, &store).await;
        let relay = watched_relay(&watched, &broker, quick());
        run_watched(&relay, async {
            for cents in 0..100 {
                store
                    .record([Credited {
                        account: cents % 7,
                        cents,
                    }])
                    .unwrap();
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            let silence = tokio::time::timeout(SOON, store.until_drained()).await;
            assert!(silence.is_ok(), "{call} was never answered, and nothing goes out");
            assert_eq!(watched.unanswered(), 1, "{call}");
        })
        .await;
        let ledger = Ledger::of(&store, &broker);
        ledger.assert_balanced();
        assert_eq!(ledger.copies(), 0, "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn unanswered_call_does_not_delay_other_relays() {
    for (call, answered) in CALLS {
        let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
        let watched = Watched::new(&store);
        let (silent, healthy) = (
            watched_relay(&watched, &broker, quick()),
            relay_of(&store, &broker, quick().seed(Some(8))),
        );
        watched.silence_one(call, answered);
        pause_for(call, &store).await;
        let shutdown = CancellationToken::new();
        let scenario = async {
            for cents in 0..300 {
                store
                    .record([Credited {
                        account: cents,
                        cents,
                    }])
                    .unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let drained = tokio::time::timeout(SOON, store.until_drained()).await;
            assert!(drained.is_ok(), "{call}: {} are out", broker.log().len());
            shutdown.cancel();
        };
        let (first, second, ()) = tokio::join!(
            silent.run(shutdown.clone()),
            healthy.run(shutdown.clone()),
            scenario
        );
        first.unwrap();
        second.unwrap();
        Ledger::of(&store, &broker).assert_balanced();
    }
}

#[tokio::test(start_paused = true)]
async fn partitions_of_an_unanswered_release_are_not_lost() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let watched = Watched::new(&store);
    watched.silence_one("release", 0);
    let silent = watched_relay(&watched, &broker, quick());
    let healthy = relay_of(&store, &broker, quick().seed(Some(8)));
    let shutdown = CancellationToken::new();
    let comes_later = async {
        tokio::time::sleep(quick().lease_ttl * 2).await;
        assert_eq!(store.owners().into_values().collect::<Vec<_>>(), [64]);
        healthy.run(shutdown.clone()).await
    };
    let scenario = async {
        tokio::time::sleep(quick().lease_ttl * 2 + SOON).await;
        assert_eq!(watched.unanswered(), 1);
        assert_eq!(store.owners().into_values().collect::<Vec<_>>(), [32, 32]);
        credit(&store, 300, 1);
        let drained = tokio::time::timeout(SOON, store.until_drained()).await;
        assert!(drained.is_ok(), "{} are out", broker.log().len());
        shutdown.cancel();
    };
    let (first, second, ()) = tokio::join!(silent.run(shutdown.clone()), comes_later, scenario);
    assert!(first.unwrap().published > 0 && second.unwrap().published > 0);
    let ledger = Ledger::of(&store, &broker);
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
}

#[tokio::test(start_paused = true)]
async fn purging_continues_after_an_unanswered_purge() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let watched = Watched::new(&store);
    watched.silence_one("purge", 0);
    credit(&store, 10, 2);
    let hour = Duration::from_secs(3600);
    let config = quick().retention(outbox_core::Retention::KeepFor(hour));
    run_watched(&watched_relay(&watched, &broker, config), async {
        tokio::time::sleep(hour * 2).await;
        assert_eq!(watched.unanswered(), 1);
        assert_eq!(store.rows().len(), 0, "still kept");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn relay_with_a_silent_database_is_replaced_and_recovers() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let watched = Watched::new(&store);
    let silent = watched_relay(&watched, &broker, quick());
    let healthy = relay_of(&store, &broker, quick().seed(Some(8)));
    let health = silent.health();
    let shutdown = CancellationToken::new();
    let scenario = async {
        tokio::time::sleep(quick().lease_ttl * 2).await;
        assert_eq!(health.now(), Health::Alive);
        watched.silence_all(true);
        let silent_since = Instant::now();
        credit(&store, 300, 1);
        store.until_drained().await;
        let took = silent_since.elapsed();
        assert!(took < quick().lease_ttl * 2, "{took:?}");
        tokio::time::sleep(SOON).await;
        assert!(
            health
                .now()
                .to_string()
                .starts_with("degraded: database has been failing for"),
            "{}",
            health.now()
        );
        tokio::time::sleep(quick().stuck_after).await;
        assert!(is_stuck(&health.now()), "{}", health.now());

        watched.silence_all(false);
        tokio::time::sleep(SOON).await;
        assert_eq!(health.now(), Health::Alive);
        let mut shares: Vec<usize> = store.owners().into_values().collect();
        shares.sort_unstable();
        assert_eq!(shares, [32, 32]);
        credit(&store, 300, 1);
        store.until_drained().await;
        shutdown.cancel();
    };
    let (first, second, ()) = tokio::join!(
        silent.run(shutdown.clone()),
        healthy.run(shutdown.clone()),
        scenario
    );
    assert!(first.unwrap().published > 0);
    second.unwrap();
    let ledger = Ledger::of(&store, &broker);
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
}

/// Health must report the activity without an answer. A relay that renews its leases but fetches
/// nothing would look healthy.
#[tokio::test(start_paused = true)]
async fn health_names_the_unanswered_activity() {
    for (call, activity) in [
        ("fetch", "fetching"),
        ("settle", "settling"),
        ("announce", "keeping leases"),
    ] {
        let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
        let watched = Watched::new(&store);
        let relay = watched_relay(&watched, &broker, quick());
        let health = relay.health();
        run_watched(&relay, async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(health.now(), Health::Alive);
            (0..1_000).for_each(|_| watched.silence_one(call, 0));
            credit(&store, 5, 1);
            tokio::time::sleep(SOON).await;
            let now = health.now().to_string();
            assert!(
                now.starts_with("degraded: database has been failing for"),
                "{call}: {now}"
            );
            assert!(
                now.contains(activity) && now.contains("no answer within"),
                "{call}: {now}"
            );
            tokio::time::sleep(quick().stuck_after).await;
            let now = health.now().to_string();
            assert!(
                now.starts_with("stuck") && now.contains(activity),
                "{call}: {now}"
            );
        })
        .await;
    }
}
