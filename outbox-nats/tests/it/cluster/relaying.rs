//! A relay, from an outbox to a stream of three nodes.

use futures_util::future::join;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{DomainEvent, Relay, RelayReport};
use outbox_nats::JetStreamPublisher;
use outbox_testing::ledger::{Committed, Ledger, Logged};
use outbox_testing::{MemoryStore, StoredRow, eventually};
use time::OffsetDateTime;

use super::publishing::{impatient, publisher_of};
use crate::environment::{LONG, Nats};
use crate::private_cluster::{PrivateCluster, others};

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

async fn relay(store: &MemoryStore, publisher: JetStreamPublisher, scenario: impl Future) -> RelayReport {
    let relay = Relay::new(store.clone(), publisher);
    let shutdown = CancellationToken::new();
    let scenario = async {
        scenario.await;
        shutdown.cancel();
    };
    let (report, ()) = join(relay.run(shutdown.clone()), scenario).await;
    report.unwrap()
}

async fn drained(store: &MemoryStore) {
    tokio::time::timeout(LONG, store.until_drained())
        .await
        .expect("a drained outbox");
}

/// Checks that no message is lost, unrecorded, reordered or copied, and that no outage counts as an
/// attempt.
async fn assert_balanced(store: &MemoryStore, nats: &Nats) {
    let committed = |row: StoredRow| {
        assert_eq!(row.attempts, 0, "{row:?}");
        Committed {
            id: row.message.event_id,
            aggregate: row.message.aggregate,
            sequence: row.message.sequence,
            status: row.status,
            halts: row.halts,
        }
    };
    let log = nats.log().await;
    let ledger = Ledger {
        committed: store.rows().into_iter().map(committed).collect(),
        log: log
            .iter()
            .map(|entry| Logged::from(entry.message.as_ref().unwrap()))
            .collect(),
    };
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
}

async fn leader_changes_under_a_relay(fenced: bool) {
    let _alone = outbox_core::wake::isolate();
    let Some(cluster) = PrivateCluster::start().await else {
        return;
    };
    let nats = cluster.nats().await;
    nats.provision_replicated().await;
    let store = MemoryStore::starting_at(OffsetDateTime::now_utc());
    let publisher = publisher_of(&nats, &nats.stream_in_mode(fenced));
    let rounds = async {
        for _ in 0..6 {
            credit(&store, 50, 17);
            nats.during_step_down(&nats.name, drained(&store)).await;
        }
    };
    let report = relay(&store, publisher, rounds).await;
    assert_eq!((report.published, report.dead_letters), (5_100, 0));
    assert_balanced(&store, &nats).await;
}

#[tokio::test]
async fn leader_changes_cost_a_relay_nothing_but_time() {
    leader_changes_under_a_relay(false).await;
}

#[tokio::test]
async fn leader_changes_cost_a_fenced_relay_nothing_but_time() {
    leader_changes_under_a_relay(true).await;
}

/// Goal: without a majority nothing is published, nothing is lost and no attempt is used. Method:
/// kill the two followers while a relay runs, so that in-flight messages cannot be stored, and
/// restart the nodes.
#[tokio::test]
async fn a_lost_majority_costs_a_relay_nothing_but_time() {
    let _alone = outbox_core::wake::isolate();
    let Some(mut cluster) = PrivateCluster::start().await else {
        return;
    };
    let nats = cluster.nats().await;
    nats.provision_replicated().await;
    let store = MemoryStore::starting_at(OffsetDateTime::now_utc());
    credit(&store, 50, 40);
    let publisher = impatient(&nats);
    let outage = async {
        nats.until_stored(100).await;
        let leader = nats.leader(&nats.name).await;
        for name in others(&leader) {
            cluster.node(name).kill();
        }
        // While the broker is silent, the relay settles no message. So the test itself sends a
        // request to detect the outage.
        eventually("an outage", async || {
            let info = nats.request("INFO", &nats.name).await;
            info.is_none_or(|info| info["cluster"]["leader"].is_null())
        })
        .await;
        cluster.restart().await;
        drained(&store).await;
    };
    let report = relay(&store, publisher, outage).await;
    assert_eq!((report.published, report.dead_letters), (2_000, 0));
    assert_balanced(&store, &nats).await;
}
