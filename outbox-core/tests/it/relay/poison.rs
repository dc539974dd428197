//! Tests of messages that cannot be published.

use outbox_core::{EventPolicy, FailureClass, OutboxAdmin, Selection};
use outbox_testing::Ledger;
use outbox_testing::Operator as _;

use super::*;

const TEN: std::num::NonZeroU32 = std::num::NonZeroU32::new(10).unwrap();

#[tokio::test(start_paused = true)]
async fn poison_message_halts_only_its_aggregate_until_retried() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 10, 3);
    broker.fail_matching(
        |message| message.aggregate.id == "4" && message.sequence == Some(2),
        FailureClass::Permanent,
    );
    let relay = relay_of(&store, &broker, quick());
    let report = run_during(&relay, async {
        until("the dead letter", || {
            statuses(&store, 4) == [Published, Dead, Waiting]
        })
        .await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let health = relay.health().now().to_string();
        assert!(health.contains("1 aggregate is halted"), "{health}");
    })
    .await;
    assert_eq!((report.published, report.dead_letters), (28, 1));
    assert_eq!(statuses(&store, 4), [Published, Dead, Waiting]);

    let dead = store.list(&Selection::dead_letters(), TEN).await.unwrap();
    assert_eq!(dead.len(), 1);
    let error = dead[0].error.as_deref().unwrap();
    assert!(dead[0].halts && error.contains("permanent"), "{dead:?}");

    broker.clear_faults();
    assert_eq!(store.retry(&Selection::id(dead[0].id)).await.unwrap(), 1);
    assert_eq!(relay.drain().await.unwrap().published, 2);
    Ledger::of(&store, &broker).assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn unclassified_rejections_end_as_dead_letters_in_order() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 2, 2);
    broker.fail_matching(|message| message.aggregate.id == "1", FailureClass::Unclassified);
    let relay = Relay::new(store.clone(), broker.publisher())
        .with_config(quick().policy(EventPolicy::default().attempts_max(3)));
    let shutdown = CancellationToken::new();
    let dead = async {
        while statuses(&store, 1)[0] != Dead {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), dead);
    assert_eq!(report.unwrap().dead_letters, 1);
    assert_eq!(statuses(&store, 1), [Dead, Waiting]);
    assert_eq!(store.rows()[0].attempts, 3);
    assert_eq!(statuses(&store, 2), [Published, Published]);
}

#[tokio::test(start_paused = true)]
async fn unreadable_row_becomes_a_dead_letter() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 3, 1);
    assert!(store.corrupt(store.rows()[1].message.id));
    let report = relay_of(&store, &broker, quick()).drain().await.unwrap();
    assert_eq!((report.published, report.dead_letters), (2, 1));
    assert!(
        store.rows()[1]
            .last_error
            .as_deref()
            .is_some_and(|error| error.contains("cannot be read"))
    );
}
