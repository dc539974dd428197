//! Claims in a bucket of three nodes.

use std::time::Duration;

use futures_util::future::{join, join_all};
use outbox_core::MessageId;
use outbox_core::dedup::{ClaimToken, DedupKey, DedupStore as _, DedupStoreError, StoreClaim};
use outbox_nats::{DedupBucketSpec, KvDedupStore};

use crate::environment::{LONG, answered};
use crate::private_cluster::PrivateCluster;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Short, because a claim whose answer was lost belongs to nobody until it runs out.
const LEASE: Duration = Duration::from_secs(1);

/// Handles a message, and returns whether this call had the effect.
async fn handle(store: &KvDedupStore, key: &DedupKey) -> bool {
    loop {
        match store.claim(key, LEASE).await {
            Ok(StoreClaim::Mine(token)) => {
                if complete(store, key, token).await {
                    return true;
                }
            }
            Ok(StoreClaim::Done) => return false,
            Ok(StoreClaim::InProgress) | Err(DedupStoreError::Unavailable { .. }) => {}
            other => panic!("{other:?}"),
        }
        // A back-off, as in the inbox.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn complete(store: &KvDedupStore, key: &DedupKey, token: ClaimToken) -> bool {
    loop {
        match store.complete(key, token, DAY).await {
            Ok(mine) => return mine,
            Err(DedupStoreError::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn leader_changes_let_each_message_be_handled_by_one() {
    let Some(cluster) = PrivateCluster::start().await else {
        return;
    };
    let (nats, other) = (cluster.nats().await, cluster.nats().await);
    let spec = DedupBucketSpec::default().bucket(&nats.name).replicas(3);
    let [here, there] = [&nats, &other].map(|nats| {
        async || {
            let open = async || KvDedupStore::open(nats.client.clone(), &spec).await;
            answered(open).await.with_timeout(Duration::from_millis(500))
        }
    });
    let (here, there) = join(here(), there()).await;
    let keys: Vec<_> = (0..200)
        .map(|_| DedupKey::new("billing", MessageId::fresh().into()))
        .collect();
    let bucket = format!("KV_{}", nats.name);
    let work = async {
        for keys in keys.chunks(50) {
            let handling = join_all(
                keys.iter()
                    .map(|key| join(handle(&here, key), handle(&there, key))),
            );
            for (here, there) in nats.during_step_down(&bucket, handling).await {
                assert_ne!(here, there, "one of them");
            }
        }
    };
    tokio::time::timeout(2 * LONG, work).await.expect("an end");
    nats.step_down(&bucket).await;
    for key in &keys {
        // The new leader may be silent at first.
        let claim = answered(async || here.claim(key, LEASE).await).await;
        assert_eq!(claim, StoreClaim::Done);
    }
}
