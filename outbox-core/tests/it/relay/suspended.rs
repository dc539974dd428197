//! Tests of suspended machines: the monotonic clock stops while the database's continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use outbox_core::message::PARTITIONS;
use outbox_core::{OutboxStore, OwnerId};

use super::*;

#[tokio::test(start_paused = true)]
async fn suspended_relay_sends_nothing_before_a_renewal() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let ahead = Arc::new(AtomicI64::new(0));
    let read = ahead.clone();
    let relay = relay_of(&store, &broker, quick())
        .with_wall_clock(move || time::Duration::seconds(read.load(Ordering::Relaxed)));
    run_during(&relay, async {
        credit(&store, 4, 1);
        store.until_drained().await;
        store.expire_leases();
        let other = OwnerId::fresh();
        let leases = store
            .acquire(other, Duration::from_secs(15), PARTITIONS)
            .await
            .unwrap();
        ahead.store(3600, Ordering::Relaxed);
        credit(&store, 4, 1);
        tokio::time::sleep(Duration::from_secs(14)).await;
        assert_eq!(broker.messages().len(), 4, "the other relay owns the partitions");
        store.release(other, &leases).await.unwrap();
        store.until_drained().await;
    })
    .await;
    assert_eq!(broker.messages().len(), 8);
}

#[tokio::test(start_paused = true)]
async fn changed_wall_clock_loses_no_lease() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let ahead = Arc::new(AtomicI64::new(0));
    let read = ahead.clone();
    let relay = relay_of(&store, &broker, quick())
        .with_wall_clock(move || time::Duration::seconds(read.load(Ordering::Relaxed)));
    let report = run_during(&relay, async {
        for seconds in [0, 3600, -7200, 30, 31, 32] {
            ahead.store(seconds, Ordering::Relaxed);
            credit(&store, 4, 5);
            store.until_drained().await;
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
    })
    .await;
    assert_eq!((report.published, report.duplicates), (120, 0));
}
