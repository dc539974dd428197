//! Tests of unrecorded verdicts when their partitions change owners.

use std::sync::{Arc, Mutex};

use outbox_core::message::PARTITIONS;
use outbox_core::{FailureClass, OutboxStore, OwnerId, Relay, Selection, Settlement, Verdict};
use outbox_testing::Operator as _;

use super::watched::Watched;
use super::*;

async fn settle_as_another(store: &MemoryStore, account: u32, verdict: Verdict) {
    let other = OwnerId::fresh();
    let leases = store.acquire(other, quick().lease_ttl, PARTITIONS).await.unwrap();
    let aggregate = Aggregate::new("account", account.to_string());
    let mut rows = store.rows().into_iter();
    let row = rows.find(|row| *row.aggregate() == aggregate).unwrap();
    let settlement = Settlement {
        row_id: row.row_id,
        id: Some(row.message.id),
        partition: aggregate.partition(),
        waited: false,
        verdict,
    };
    assert_eq!(store.settle(&leases, &[settlement]).await.unwrap(), 1);
    store.release(other, &leases).await.unwrap();
}

/// The first relay could not record a dead letter. A second relay recorded it, and an operator
/// fixed the cause. When the first relay gets the partition back, its old verdict is invalid.
#[tokio::test(start_paused = true)]
async fn verdict_does_not_outlive_its_lease() {
    for class in [FailureClass::Permanent, FailureClass::Unclassified] {
        for (store_timeout, silent) in [(10, 1), (1, 8)] {
            let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
            credit(&store, 4, 3);
            broker.fail_matching(|message| message.aggregate.id == "3", class);
            let watched = Watched::new(&store);
            (0..silent).for_each(|_| watched.silence_one("settle", 0));
            let config = quick().store_timeout(Duration::from_secs(store_timeout));
            let relay = Relay::new(watched.clone(), broker.publisher())
                .with_config(config)
                .on_dead_letter(|dead| panic!("told of {dead:?}"));
            let shutdown = CancellationToken::new();
            let scenario = async {
                until("a settlement", || watched.unanswered() > 0).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                store.expire_leases();
                let error = "refused".to_owned();
                settle_as_another(&store, 3, Verdict::Dead { error, halt: true }).await;
                broker.clear_faults();
                assert_eq!(store.retry(&Selection::dead_letters()).await.unwrap(), 1);
                tokio::time::sleep(Duration::from_secs(60)).await;
                credit(&store, 4, 1);
                tokio::time::sleep(Duration::from_secs(60)).await;
                shutdown.cancel();
            };
            let _alone = outbox_core::wake::isolate();
            let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
            let case = format!("{class:?}, {store_timeout} s");
            assert_eq!(report.unwrap().dead_letters, 0, "{case}");
            for account in 1..=4 {
                assert_eq!(statuses(&store, account), [Published; 4], "{case}: {account}");
            }
            let failures: u32 = store.rows().iter().map(|row| row.failures).sum();
            assert_eq!(failures, 1, "{case}: that of the other relay");
        }
    }
}

/// One settlement has rejected verdicts in two partitions: a dead letter and a published message.
/// Nothing of this settlement is reported, and the next settlement is.
#[tokio::test(start_paused = true)]
async fn rejected_verdicts_are_not_reported() {
    const DEAD: [u32; 2] = [3, 11];
    const REFUSED: [u32; 2] = [3, 5];
    let partition_of = |account: u32| Aggregate::new("account", account.to_string()).partition();
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 16, 1);
    let is_dead =
        |message: &outbox_core::Message| DEAD.iter().any(|dead| message.aggregate.id == dead.to_string());
    broker.fail_matching(is_dead, FailureClass::Permanent);
    let watched = Watched::new(&store);
    let lost = REFUSED.map(partition_of);
    let others = (1..=16).filter(|account| !REFUSED.contains(account));
    assert!(
        others
            .map(partition_of)
            .all(|partition| !lost.contains(&partition)),
        "choose others: {lost:?}"
    );
    watched.lose(&lost);
    let told = Arc::new(Mutex::new(Vec::new()));
    let (notes, rows) = (told.clone(), store.clone());
    let relay = Relay::new(watched.clone(), broker.publisher())
        .with_config(quick())
        .on_dead_letter(move |dead| {
            let account = dead.aggregate.id.parse().unwrap();
            assert_eq!(statuses(&rows, account), [Dead], "recorded first");
            notes.lock().unwrap().push(account);
        });
    let shutdown = CancellationToken::new();
    let scenario = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        shutdown.cancel();
    };
    let _alone = outbox_core::wake::isolate();
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    let report = report.unwrap();
    assert_eq!(
        (report.published, report.duplicates),
        (1, 1),
        "one was sent again"
    );
    assert_eq!((report.dead_letters, &*told.lock().unwrap()), (1, &vec![3]));
}
