//! Tests of outages: broker or database is unreachable, silent or slow.

use outbox_core::{FailureClass, RelayError};
use outbox_testing::Ledger;
use tokio::time::Instant;

use super::watched::Watched;
use super::*;

#[tokio::test(start_paused = true)]
async fn lost_confirmations_are_resent_without_copies() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 2, 3);
    broker.lose_acks(2);
    let relay = relay_of(&store, &broker, quick());
    let shutdown = CancellationToken::new();
    let drained = async {
        store.until_drained().await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), drained);
    assert_eq!(report.unwrap().duplicates, 2);
    let ledger = Ledger::of(&store, &broker);
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
}

#[tokio::test(start_paused = true)]
async fn broker_outage_uses_no_attempts() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 20, 10);
    broker.set_down(true);
    let relay = relay_of(&store, &broker, quick());
    let shutdown = CancellationToken::new();
    let outage = async {
        tokio::time::sleep(Duration::from_secs(30 * 60)).await;
        assert!(
            store
                .rows()
                .iter()
                .all(|row| row.status == Pending && row.attempts == 0)
        );
        let publishes = broker.publishes();
        assert!(
            publishes < 20 + 100 * 16,
            "{publishes} publishes hammered the broker"
        );
        broker.set_down(false);
        store.until_drained().await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), outage);
    assert_eq!(report.unwrap().published, 200);
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn database_outage_settles_before_publishing_more() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 5, 5);
    let relay = relay_of(&store, &broker, quick());
    let shutdown = CancellationToken::new();
    let outage = async {
        while broker.publishes() == 0 {
            tokio::task::yield_now().await;
        }
        store.set_down(true);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let sent = broker.publishes();
        assert!(
            sent <= 25,
            "{sent}: messages were sent again and again while nothing could be recorded"
        );
        store.set_down(false);
        store.until_drained().await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), outage);
    assert_eq!(report.unwrap().dead_letters, 0);
    Ledger::of(&store, &broker).assert_balanced();
}

/// Each activity of the relay backs off separately. Together they must not overload a recovering
/// database.
#[tokio::test(start_paused = true)]
async fn database_outage_causes_few_retries() {
    let _alone = outbox_core::wake::isolate();
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 100, 1);
    let watched = Watched::new(&store);
    let relay = Relay::new(watched.clone(), broker.publisher()).with_config(quick());
    let shutdown = CancellationToken::new();
    let outage = async {
        until("something on its way", || broker.publishes() > 0).await;
        store.set_down(true);
        let before = watched.calls();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let calls = watched.calls() - before;
        assert!(calls <= 60, "{calls} calls in a minute");
        store.set_down(false);
        store.until_drained().await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), outage);
    assert_eq!(report.unwrap().published, 100);
}

/// No stream captures the subject, which looks like a broker outage.
#[tokio::test(start_paused = true)]
async fn many_uncaptured_messages_do_not_stop_other_messages() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 500, 1);
    broker.fail_matching(
        |message| message.aggregate.id.parse::<u32>().is_ok_and(|id| id <= 500),
        FailureClass::Transient,
    );
    let relay = relay_of(&store, &broker, quick());
    let shutdown = CancellationToken::new();
    let others = async {
        for account in 1001..=1020 {
            tokio::time::sleep(Duration::from_secs(4)).await;
            let recorded_at = Instant::now();
            store.record([Credited { account, cents: 1 }]).unwrap();
            while statuses(&store, account) != [Published] {
                tokio::time::sleep(Duration::from_millis(50)).await;
                assert!(recorded_at.elapsed() < Duration::from_secs(31), "still waits");
            }
        }
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), others);
    assert_eq!(report.unwrap().dead_letters, 0);
}

#[tokio::test(start_paused = true)]
async fn drain_reports_an_unavailable_broker() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 1, 1);
    broker.set_down(true);
    let error = Relay::new(store, broker.publisher()).drain().await.unwrap_err();
    assert!(matches!(error, RelayError::Broker(_)), "{error:?}");
}
