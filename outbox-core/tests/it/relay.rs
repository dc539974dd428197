//! The relay over store and broker in memory, on a paused clock: one test per failure it must survive.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use outbox_core::testing::conformance::store::RowStatus;
use outbox_core::testing::{Ledger, MemoryBroker, MemoryStore};
use outbox_core::{
    Aggregate, Backlog, DomainEvent, FailureClass, FetchRequest, FetchedRow, Lease, OutboxAdmin, OutboxStore,
    OwnerId, PoisonPolicy, Relay, RelayConfig, RelayError, Settlement, StoreError,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "account", name = "credited")]
struct Credited {
    #[domain_event(aggregate_id)]
    account: u32,
    cents: u32,
}

fn credit(store: &MemoryStore, accounts: u32, each: u32) {
    for cents in 1..=each {
        for account in 1..=accounts {
            store.record([Credited { account, cents }]).unwrap();
        }
    }
}

fn quick() -> RelayConfig {
    RelayConfig::default().seed(Some(7))
}

fn statuses(store: &MemoryStore, account: u32) -> Vec<RowStatus> {
    let aggregate = Aggregate::new("account", account.to_string());
    store
        .rows()
        .into_iter()
        .filter(|row| *row.aggregate() == aggregate)
        .map(|row| row.status)
        .collect()
}

use RowStatus::{Parked, Pending, Published};

#[tokio::test(start_paused = true)]
async fn what_was_committed_is_published_in_order_and_settled() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 50, 20);
    let report = Relay::new(store.clone(), broker.publisher())
        .with_config(quick())
        .drain()
        .await
        .unwrap();
    assert_eq!(
        (report.published, report.duplicates, report.failed, report.parked),
        (1000, 0, 0, 0)
    );
    Ledger::of(&store, &broker).assert_balanced();
    assert_eq!(broker.log().len(), 1000);
}

/// Kills the relay at each of its await points, as often as needed to get through, and lets a successor finish the work.
#[tokio::test(start_paused = true)]
async fn a_relay_that_dies_anywhere_loses_and_inverts_nothing() {
    for polls in 1.. {
        let (store, broker) = (
            MemoryStore::new(),
            MemoryBroker::new().with_latency(Duration::from_millis(1)),
        );
        credit(&store, 3, 3);
        let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick());
        let finished = {
            let mut drain = pin!(relay.drain());
            poll_times(drain.as_mut(), polls).await
        };
        // The dead relay's leases must run out first.
        tokio::time::advance(quick().lease_ttl).await;
        Relay::new(store.clone(), broker.publisher())
            .with_config(quick())
            .drain()
            .await
            .unwrap();
        let ledger = Ledger::of(&store, &broker);
        ledger.assert_balanced();
        assert_eq!(ledger.copies(), 0, "the broker knows the ids");
        if finished {
            assert!(polls > 5, "the relay has more await points than {polls}");
            return;
        }
    }
}

/// Polls a future at most so many times, letting time pass in between; returns whether it finished.
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

#[tokio::test(start_paused = true)]
async fn lost_confirmations_are_sent_again_and_leave_no_copy() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 2, 3);
    broker.lose_acks(2);
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick());
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
async fn a_broker_outage_of_half_an_hour_parks_nothing_and_uses_no_attempts() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 20, 10);
    broker.set_down(true);
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick());
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
async fn a_database_outage_loses_nothing_and_settles_before_it_publishes_more() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 5, 5);
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick());
    let shutdown = CancellationToken::new();
    let outage = async {
        // The database goes away once the first message is on the stream, so before anything is settled.
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
    assert_eq!(report.unwrap().parked, 0);
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn a_poison_message_halts_its_own_aggregate_only_until_it_is_retried() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 10, 3);
    broker.fail_matching(
        |message| message.aggregate.id == "4" && message.sequence == Some(2),
        FailureClass::Permanent,
    );
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick());
    let report = relay.drain().await.unwrap();
    assert_eq!((report.published, report.parked), (28, 1));
    assert_eq!(statuses(&store, 4), [Published, Parked, Pending]);

    let parked = store
        .parked(const { std::num::NonZeroU32::new(10).unwrap() })
        .await
        .unwrap();
    assert_eq!(parked.len(), 1);
    assert!(
        parked[0].halts && parked[0].error.contains("permanent"),
        "{parked:?}"
    );

    broker.clear_faults();
    assert!(store.retry(parked[0].id).await.unwrap());
    assert_eq!(relay.drain().await.unwrap().published, 2);
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn park_and_continue_lets_the_aggregate_go_on() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 1, 3);
    broker.fail_matching(|message| message.sequence == Some(2), FailureClass::Permanent);
    let config = quick().on_poison(PoisonPolicy::ParkAndContinue);
    Relay::new(store.clone(), broker.publisher())
        .with_config(config)
        .drain()
        .await
        .unwrap();
    assert_eq!(statuses(&store, 1), [Published, Parked, Published]);
}

#[tokio::test(start_paused = true)]
async fn unknown_refusals_use_attempts_and_end_in_parking_without_being_overtaken() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 2, 2);
    broker.fail_matching(|message| message.aggregate.id == "1", FailureClass::Unclassified);
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick().attempts_max(3));
    let shutdown = CancellationToken::new();
    let parked = async {
        while statuses(&store, 1)[0] != Parked {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), parked);
    assert_eq!(report.unwrap().parked, 1);
    assert_eq!(statuses(&store, 1), [Parked, Pending]);
    assert_eq!(store.rows()[0].attempts, 3);
    assert_eq!(statuses(&store, 2), [Published, Published]);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_row_is_parked_and_others_flow() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 3, 1);
    assert!(store.corrupt(store.rows()[1].message.id));
    let report = Relay::new(store.clone(), broker.publisher())
        .with_config(quick())
        .drain()
        .await
        .unwrap();
    assert_eq!((report.published, report.parked), (2, 1));
    assert!(
        store.rows()[1]
            .last_error
            .as_deref()
            .is_some_and(|error| error.contains("cannot be read"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_misconfigured_event_type_does_not_stop_the_others() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 1500, 1);
    // More failing aggregates than one batch holds.
    broker.fail_matching(
        |message| message.aggregate.id.parse::<u32>().is_ok_and(|id| id <= 1200),
        FailureClass::Configuration,
    );
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick());
    let shutdown = CancellationToken::new();
    let others = async {
        while broker.log().len() < 300 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), others);
    assert_eq!(report.unwrap().parked, 0);
}

/// No stream takes their subject, which looks like a broker that is away.
#[tokio::test(start_paused = true)]
async fn a_crowd_of_messages_that_no_stream_takes_does_not_stop_the_others() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 500, 1);
    broker.fail_matching(
        |message| message.aggregate.id.parse::<u32>().is_ok_and(|id| id <= 500),
        FailureClass::Transient,
    );
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick());
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
    assert_eq!(report.unwrap().parked, 0);
}

/// Nobody answers: neither settling nor giving the leases back may hold up the shutdown.
#[tokio::test(start_paused = true)]
async fn a_database_that_hangs_cannot_hold_up_the_shutdown() {
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

/// A store behind a connection that went silent.
struct Hanging(MemoryStore);

impl OutboxStore for Hanging {
    async fn acquire(&self, _: OwnerId, _: Duration, _: u16) -> Result<Vec<Lease>, StoreError> {
        std::future::pending().await
    }

    async fn renew(&self, _: OwnerId, _: &[Lease], _: Duration) -> Result<Vec<Lease>, StoreError> {
        std::future::pending().await
    }

    async fn release(&self, _: OwnerId, _: &[Lease]) -> Result<(), StoreError> {
        std::future::pending().await
    }

    async fn fetch(&self, _: FetchRequest<'_>) -> Result<Vec<FetchedRow>, StoreError> {
        std::future::pending().await
    }

    async fn settle(&self, _: &[Lease], _: &[Settlement]) -> Result<usize, StoreError> {
        std::future::pending().await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.0.backlog().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_in_the_same_process_is_published_without_waiting_for_a_poll() {
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
        assert!(
            committed_at.elapsed() < Duration::from_secs(1),
            "{:?}",
            committed_at.elapsed()
        );
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), committed);
    assert_eq!(report.unwrap().published, 1);
}

#[tokio::test(start_paused = true)]
async fn a_clean_shutdown_settles_what_is_in_flight_and_hands_over_at_once() {
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
    let successor = Relay::new(store.clone(), broker.publisher()).with_config(quick());
    assert_eq!(successor.drain().await.unwrap().duplicates, 0);
    assert!(
        before.elapsed() < quick().lease_ttl,
        "the successor had to wait for the leases"
    );
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_never_answers_cannot_hold_up_the_shutdown() {
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
async fn a_waiting_relay_takes_over_from_one_that_died() {
    let (store, broker) = (
        MemoryStore::new(),
        MemoryBroker::new().with_latency(Duration::from_millis(3)),
    );
    credit(&store, 30, 30);
    let shutdown = CancellationToken::new();
    let relay = || {
        let relay = Relay::new(store.clone(), broker.publisher()).with_config(quick());
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

#[tokio::test]
async fn impossible_configurations_are_refused_at_the_start() {
    let refused = async |config: RelayConfig| {
        let relay = Relay::new(MemoryStore::new(), MemoryBroker::new().publisher()).with_config(config);
        matches!(
            relay.run(CancellationToken::new()).await,
            Err(RelayError::Config(_))
        )
    };
    assert!(refused(RelayConfig::default().window(0)).await);
    assert!(refused(RelayConfig::default().window(1025)).await);
    assert!(refused(RelayConfig::default().lease_ttl(Duration::from_millis(1))).await);
    assert!(refused(RelayConfig::default().poll_min(Duration::ZERO)).await);
    assert!(refused(RelayConfig::default().poll_min(Duration::from_secs(2))).await);
    assert!(refused(RelayConfig::default().attempts_max(0)).await);
}

#[tokio::test(start_paused = true)]
async fn drain_reports_a_broker_that_is_away() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 1, 1);
    broker.set_down(true);
    let error = Relay::new(store, broker.publisher()).drain().await.unwrap_err();
    assert!(matches!(error, RelayError::Broker(_)), "{error:?}");
}
