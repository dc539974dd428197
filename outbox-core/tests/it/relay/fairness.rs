//! Tests of one failing or busy aggregate next to healthy ones.

use outbox_core::{FailureClass, NewMessage, OutboxStore as _};
use outbox_testing::Ledger;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn busy_aggregate_does_not_starve_other_aggregates() {
    let (store, broker) = (
        MemoryStore::new(),
        MemoryBroker::new().with_latency(Duration::from_millis(2)),
    );
    for cents in 0..20_000 {
        store.record([Credited { account: 0, cents }]).unwrap();
    }
    credit(&store, 50, 2);
    let relay = relay_of(&store, &broker, quick());
    let began = Instant::now();
    let report = run_during(&relay, async {
        until("the others", || {
            (1..=50).all(|account| statuses(&store, account) == [Published; 2])
        })
        .await;
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        store.until_drained().await;
        let at_best = Duration::from_millis(4 * 20_000);
        assert!(
            began.elapsed() < at_best * 5 / 4,
            "the hot one itself took {:?}",
            began.elapsed()
        );
    })
    .await;
    assert_eq!(report.published, 20_100);
    let ledger = Ledger::of(&store, &broker);
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
    assert_eq!(store.backlog().await.unwrap().blocked_aggregates, 0);
}

#[tokio::test(start_paused = true)]
async fn many_rejected_aggregates_do_not_stop_other_aggregates() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 10_000, 1);
    broker.fail_matching(
        |message| message.aggregate.id.parse::<u32>().is_ok_and(|id| id <= 10_000),
        FailureClass::Configuration,
    );
    for account in 10_001..=10_100 {
        store.record([Credited { account, cents: 1 }]).unwrap();
    }
    let relay = relay_of(&store, &broker, quick());
    let began = Instant::now();
    let report = run_during(&relay, async {
        until("the others", || broker.log().len() == 100).await;
        assert!(
            began.elapsed() < Duration::from_secs(200),
            "{:?}",
            began.elapsed()
        );
        broker.clear_faults();
        store.until_drained().await;
    })
    .await;
    assert_eq!((report.published, report.dead_letters), (10_100, 0));
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn back_off_grows_across_relays() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 1, 5);
    broker.fail_matching(|_| true, FailureClass::Configuration);
    for _ in 0..20 {
        let relay = relay_of(&store, &broker, quick());
        run_during(&relay, tokio::time::sleep(Duration::from_secs(30))).await;
    }
    let publishes = broker.publishes();
    assert!((15..60).contains(&publishes), "{publishes} tries in ten minutes");
    assert!(store.rows().iter().all(|row| row.attempts == 0));
    broker.clear_faults();
    run_during(&relay_of(&store, &broker, quick()), store.until_drained()).await;
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn delayed_message_delays_its_aggregate() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let due = store.now() + Duration::from_secs(3600);
    credit(&store, 2, 1);
    let delayed = NewMessage::from_event(&Credited { account: 1, cents: 2 })
        .unwrap()
        .available_at(due);
    store.record([delayed]).unwrap();
    store
        .record([
            Credited { account: 1, cents: 3 },
            Credited { account: 2, cents: 2 },
        ])
        .unwrap();
    let relay = relay_of(&store, &broker, quick());
    run_during(&relay, async {
        until("what is not delayed", || broker.log().len() == 3).await;
        tokio::time::sleep(Duration::from_secs(3590)).await;
        assert_eq!(statuses(&store, 1), [Published, Waiting, Waiting]);
        store.until_drained().await;
        let late = store.now() - due;
        assert!(
            (time::Duration::ZERO..=time::Duration::seconds(6)).contains(&late),
            "{late}"
        );
    })
    .await;
    Ledger::of(&store, &broker).assert_balanced();
}
