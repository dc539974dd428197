//! Tests of pauses of all messages, and of an aggregate type.

use outbox_core::{Health, OutboxStore, OwnerId, PauseRequest};
use outbox_testing::Operator as _;

use super::*;

#[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct Placed {
    #[domain_event(aggregate_id)]
    order: u32,
}

const KNOWN_WITHIN: Duration = Duration::from_secs(6);

pub(crate) async fn pause(store: &MemoryStore, aggregate_type: Option<&str>, lasts: Option<Duration>) {
    let request = PauseRequest {
        aggregate_type: aggregate_type.map(str::to_owned),
        reason: "overrun".to_owned(),
        by: "alice".to_owned(),
        lasts,
    };
    store.pause(&request).await.unwrap();
}

fn count(store: &MemoryStore, aggregate_type: &str, status: MessageStatus) -> usize {
    let is_of = |row: &outbox_testing::StoredRow| {
        row.aggregate().aggregate_type == aggregate_type && row.status == status
    };
    store.rows().into_iter().filter(is_of).count()
}

#[tokio::test(start_paused = true)]
async fn pause_of_all_messages_holds_them_in_order() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let relay = relay_of(&store, &broker, quick());
    let health = relay.health();
    credit(&store, 3, 2);
    run_during(&relay, async {
        until("publishing", || broker.publishes() == 6).await;
        pause(&store, None, None).await;
        tokio::time::sleep(KNOWN_WITHIN).await;
        credit(&store, 3, 4);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(broker.publishes(), 6);
        assert_eq!(count(&store, "account", Pending), 12, "no row is touched");
        let Health::Degraded { reasons } = health.now() else {
            panic!("{}", health.now());
        };
        assert_eq!(
            reasons,
            ["publishing of all messages is paused by alice: overrun"]
        );
        assert!(store.unpause(None).await.unwrap());
        until("publishing", || count(&store, "account", Published) == 18).await;
        assert_eq!(health.now(), Health::Alive);
    })
    .await;
    assert!(
        store
            .rows()
            .iter()
            .all(|row| row.failures == 0 && row.attempts == 0)
    );
    assert_eq!(store.pauses().await.unwrap(), [], "the relay has removed it");
}

#[tokio::test(start_paused = true)]
async fn pause_of_a_type_spares_other_types_and_survives_restart() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    pause(&store, Some("order"), None).await;
    for order in [1, 2, 1] {
        store.record([Placed { order }]).unwrap();
    }
    credit(&store, 2, 2);
    for _ in 0..2 {
        let relay = relay_of(&store, &broker, quick());
        run_during(&relay, async {
            until("publishing", || count(&store, "account", Pending) == 0).await;
            tokio::time::sleep(Duration::from_secs(600)).await;
        })
        .await;
        assert_eq!(count(&store, "order", Waiting), 3, "each is set aside");
        assert_eq!(broker.publishes(), 4);
    }
    let relay = relay_of(&store, &broker, quick());
    run_during(&relay, async {
        tokio::time::sleep(KNOWN_WITHIN).await;
        store.unpause(Some("order")).await.unwrap();
        until("publishing", || count(&store, "order", Published) == 3).await;
    })
    .await;
    assert!(
        store
            .rows()
            .iter()
            .all(|row| row.failures == 0 && row.status == Published)
    );
    assert_eq!(broker.publishes(), 7);
}

#[tokio::test(start_paused = true)]
async fn expired_pause_releases_its_messages() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    pause(&store, Some("account"), Some(Duration::from_secs(60))).await;
    credit(&store, 2, 2);
    let relay = relay_of(&store, &broker, quick());
    run_during(&relay, async {
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(broker.publishes(), 0);
        tokio::time::sleep(KNOWN_WITHIN * 2).await;
        assert_eq!(count(&store, "account", Published), 4);
    })
    .await;
}

/// When the broker recovers, the pause must hold messages in memory too.
#[tokio::test(start_paused = true)]
async fn pause_holds_messages_already_in_memory() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    broker.set_down(true);
    credit(&store, 5, 3);
    let relay = relay_of(&store, &broker, quick());
    run_during(&relay, async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        pause(&store, Some("account"), None).await;
        tokio::time::sleep(KNOWN_WITHIN).await;
        broker.set_down(false);
        let before = broker.publishes();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(broker.publishes(), before);
        assert_eq!(count(&store, "account", Published), 0);
        store.unpause(Some("account")).await.unwrap();
        until("publishing", || count(&store, "account", Published) == 15).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn drain_leaves_paused_messages() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    pause(&store, Some("order"), None).await;
    store.record([Placed { order: 1 }]).unwrap();
    credit(&store, 1, 1);
    let report = relay_of(&store, &broker, quick()).drain().await.unwrap();
    assert_eq!(report.published, 1);
    pause(&store, None, None).await;
    credit(&store, 1, 1);
    let report = relay_of(&store, &broker, quick()).drain().await.unwrap();
    assert_eq!(report.published, 0);
}

#[tokio::test(start_paused = true)]
async fn relay_that_cannot_read_pauses_sends_nothing() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let watched = watched::Watched::new(&store);
    for _ in 0..1_000 {
        watched.silence_one("pauses", 0);
    }
    credit(&store, 1, 1);
    let relay = Relay::new(watched, broker.publisher()).with_config(quick());
    let shutdown = CancellationToken::new();
    let stop = async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), stop);
    assert_eq!(report.unwrap().published, 0);
    assert_eq!(broker.publishes(), 0);
}

#[tokio::test(start_paused = true)]
async fn newly_acquired_partitions_honour_a_new_pause() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let other = OwnerId::fresh();
    let leases = store.acquire(other, Duration::from_secs(60), 64).await.unwrap();
    credit(&store, 1, 1);
    let relay = relay_of(&store, &broker, quick());
    run_during(&relay, async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        pause(&store, None, None).await;
        store.release(other, &leases).await.unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(
            store
                .acquire(other, Duration::from_secs(60), 64)
                .await
                .unwrap()
                .is_empty()
        );
        assert_eq!(broker.publishes(), 0);
    })
    .await;
}
