//! Tests of a relay while database and broker are healthy.

use std::pin::pin;
use std::task::{Context, Waker};

use outbox_testing::Ledger;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn committed_messages_are_published_in_order_and_settled() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 50, 20);
    let report = relay_of(&store, &broker, quick()).drain().await.unwrap();
    assert_eq!(
        (
            report.published,
            report.duplicates,
            report.failed,
            report.dead_letters
        ),
        (1000, 0, 0, 0)
    );
    Ledger::of(&store, &broker).assert_balanced();
    assert_eq!(broker.log().len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn crash_at_any_await_point_loses_and_reorders_nothing() {
    for polls in 1.. {
        let (store, broker) = (
            MemoryStore::new(),
            MemoryBroker::new().with_latency(Duration::from_millis(1)),
        );
        credit(&store, 3, 3);
        let relay = relay_of(&store, &broker, quick());
        let finished = {
            let mut drain = pin!(relay.drain());
            poll_times(drain.as_mut(), polls).await
        };
        tokio::time::advance(quick().lease_ttl).await;
        relay_of(&store, &broker, quick()).drain().await.unwrap();
        let ledger = Ledger::of(&store, &broker);
        ledger.assert_balanced();
        assert_eq!(ledger.copies(), 0, "the broker knows the ids");
        if finished {
            assert!(polls > 5, "the relay has more await points than {polls}");
            return;
        }
    }
}

async fn poll_times<F: Future>(mut future: std::pin::Pin<&mut F>, polls: usize) -> bool {
    for _ in 0..polls {
        if future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
        {
            return true;
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    false
}

/// Commits of other tests also wake the relay. After eight vain wake-ups the relay waits for
/// `poll_min`, so the test tries often.
#[tokio::test(start_paused = true)]
async fn local_commit_is_published_without_waiting_for_a_poll() {
    let mut took = Vec::new();
    while took.last().is_none_or(|took| *took >= Duration::from_secs(1)) {
        assert!(took.len() < 2_000, "{took:?}");
        took.push(from_commit_to_stream().await);
    }
}

async fn from_commit_to_stream() -> Duration {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(
        quick()
            .poll_max(Duration::from_secs(14))
            .poll_min(Duration::from_secs(14)),
    );
    let shutdown = CancellationToken::new();
    let committed = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let committed_at = Instant::now();
        credit(&store, 1, 1);
        store.until_drained().await;
        shutdown.cancel();
        committed_at.elapsed()
    };
    let (report, took) = tokio::join!(relay.run(shutdown.clone()), committed);
    assert_eq!(report.unwrap().published, 1);
    took
}

#[tokio::test(start_paused = true)]
async fn fetch_requests_about_as_many_rows_as_fit() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 20, 200);
    let largest = store
        .rows()
        .iter()
        .map(|row| row.message.payload.len())
        .max()
        .unwrap();
    let config = quick().buffer_bytes(50 * largest);
    let watched = super::watched::Watched::new(&store);
    let relay = Relay::new(watched.clone(), broker.publisher()).with_config(config);
    assert_eq!(relay.drain().await.unwrap().published, 4000);
    let asked = watched.asked();
    assert_eq!(asked[0], 256, "nothing is known of the messages");
    assert!(
        asked.len() > 40 && asked[1..].iter().all(|rows| (50..=60).contains(rows)),
        "{asked:?}"
    );
}
