//! Tests of a relay that reaches its database but cannot do its work, while other relays can.

use outbox_core::message::PARTITIONS;
use outbox_core::store::RelayHealth;
use outbox_core::wake;
use outbox_core::{
    FailureClass, Health, HealthCheck, OutboxStore, OwnerId, Publisher as _, Settlement, Verdict,
};
use outbox_testing::{Ledger, Reached, Way};
use tokio::time::Instant;

use super::watched::Watched;
use super::*;

const ACCOUNTS: u32 = 16;

struct Group {
    config: RelayConfig,
    store: MemoryStore,
    broker: MemoryBroker,
    watched: Vec<Watched>,
    ways: Vec<Reached>,
    health: Vec<HealthCheck>,
    shutdown: CancellationToken,
    runs: Vec<tokio::task::JoinHandle<RelayReport>>,
    _alone: wake::Isolation,
}

impl Group {
    async fn of(relays: u64) -> Self {
        Self::configured(relays, quick()).await
    }

    async fn configured(relays: u64, config: RelayConfig) -> Self {
        let lease_ttl = config.lease_ttl;
        let mut group = Self {
            config,
            store: MemoryStore::new(),
            broker: MemoryBroker::new(),
            watched: Vec::new(),
            ways: Vec::new(),
            health: Vec::new(),
            shutdown: CancellationToken::new(),
            runs: Vec::new(),
            _alone: wake::isolate(),
        };
        for _ in 0..relays {
            group.join(Way::Open);
        }
        tokio::time::sleep(lease_ttl * 2).await;
        group
    }

    fn join(&mut self, way: Way) {
        let (watched, reached) = (Watched::new(&self.store), Reached::new(&self.broker));
        reached.set(way);
        let config = self.config.clone().seed(Some(self.runs.len() as u64));
        let relay = Relay::new(watched.clone(), reached.clone()).with_config(config);
        self.watched.push(watched);
        self.ways.push(reached);
        self.health.push(relay.health());
        let shutdown = self.shutdown.clone();
        self.runs
            .push(tokio::spawn(async move { relay.run(shutdown).await.unwrap() }));
    }

    fn shares(&self) -> Vec<usize> {
        let mut shares: Vec<usize> = self.store.owners().into_values().collect();
        shares.sort_unstable();
        shares
    }

    fn granted(&self) -> usize {
        self.watched.iter().map(Watched::granted).sum()
    }

    fn pending(&self) -> usize {
        let rows = self.store.rows().into_iter();
        rows.filter(|row| row.status != Published).count()
    }

    async fn drained_within(&self, bound: Duration, what: &str) {
        let drained = tokio::time::timeout(bound, self.store.until_drained()).await;
        assert!(drained.is_ok(), "{what}: {} are left", self.pending());
    }

    async fn end(self) -> Vec<RelayReport> {
        self.shutdown.cancel();
        let mut reports = Vec::new();
        for run in self.runs {
            reports.push(run.await.unwrap());
        }
        let ledger = Ledger::of(&self.store, &self.broker);
        ledger.assert_balanced();
        assert_eq!(ledger.copies(), 0);
        reports
    }
}

#[tokio::test(start_paused = true)]
async fn relay_without_broker_hands_over_and_recovers() {
    for way in [
        Way::Silent,
        Way::SilentToMessages,
        Way::Refused(FailureClass::Transient),
        Way::Refused(FailureClass::Configuration),
    ] {
        let group = Group::of(2).await;
        assert_eq!(group.shares(), [32, 32]);
        group.ways[0].set(way);
        for cents in 0..20 {
            (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents }]).unwrap());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        group
            .drained_within(quick().lease_ttl * 4, &format!("{way:?}"))
            .await;
        tokio::time::sleep(quick().stuck_after * 2).await;
        let health = group.health[0].now().to_string();
        if way == Way::Silent {
            assert!(
                health.starts_with("degraded: broker has been failing for"),
                "{health}"
            );
            assert!(
                health.contains("this relay has released its partitions"),
                "{health}"
            );
        } else {
            assert!(!is_stuck(&group.health[0].now()), "{way:?}: {health}");
        }
        assert_eq!(group.health[1].now(), Health::Alive);

        group.ways[0].set(Way::Open);
        let opened_at = Instant::now();
        let mut cents = 20;
        while group.shares() != [32, 32] {
            (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents }]).unwrap());
            cents += 1;
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(
                opened_at.elapsed() < Duration::from_secs(700),
                "{way:?}: {:?}",
                group.shares()
            );
        }
        tokio::time::sleep(quick().lease_ttl).await;
        assert_eq!(group.health[0].now(), Health::Alive, "{way:?}");
        assert_eq!(group.shares(), [32, 32], "{way:?}");
        group.drained_within(quick().lease_ttl, "in the end").await;
        group.end().await;
    }
}

/// The relay must not take its partitions back before the other relay acquires them.
#[tokio::test(start_paused = true)]
async fn relay_hands_over_despite_publish_timeouts_beyond_its_lease() {
    for lease_secs in [1, 2] {
        let group = Group::configured(2, quick().lease_ttl(Duration::from_secs(lease_secs))).await;
        assert_eq!(group.shares(), [32, 32]);
        group.ways[0].set(Way::SilentToMessages);
        let before = group.watched[0].granted();
        (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents: 1 }]).unwrap());
        group.drained_within(Duration::from_secs(15), "all").await;
        assert_eq!(
            group.watched[0].granted(),
            before,
            "it took partitions back, with leases of {lease_secs} s"
        );
        group.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn relay_that_cannot_fetch_or_settle_hands_over() {
    for call in ["fetch", "fetch_waiting", "settle"] {
        let group = Group::of(2).await;
        (0..10_000).for_each(|_| group.watched[0].silence_one(call, 0));
        group.ways[0].set(Way::Open);
        if call == "fetch_waiting" {
            group.broker.fail_next(40, FailureClass::Transient);
        }
        for cents in 0..20 {
            (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents }]).unwrap());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        group.drained_within(quick().lease_ttl * 6, call).await;
        group.end().await;
    }
}

/// When the leases expired, the relay dropped the verdicts of the failed settlement. No verdict is
/// left to prove that settling works again.
#[tokio::test(start_paused = true)]
async fn settling_failure_ends_without_verdicts_left() {
    let group = Group::of(2).await;
    group.ways[0].set(Way::Refused(FailureClass::Permanent));
    group.watched[0].silence_one("settle", 0);
    (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents: 1 }]).unwrap());
    until("a settlement without an answer", || {
        group.watched[0].unanswered() == 1
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    group.store.expire_leases();
    let other = OwnerId::fresh();
    let leases = group
        .store
        .acquire(other, quick().lease_ttl, PARTITIONS)
        .await
        .unwrap();
    for row in group
        .store
        .rows()
        .into_iter()
        .filter(|row| row.status != Published)
    {
        group.broker.publisher().publish(&row.message).await.unwrap();
        let settlement = Settlement {
            row_id: row.row_id,
            id: Some(row.message.id),
            partition: row.aggregate().partition(),
            waited: false,
            verdict: Verdict::Published { keep: true },
        };
        assert_eq!(group.store.settle(&leases, &[settlement]).await.unwrap(), 1);
    }
    group.store.release(other, &leases).await.unwrap();
    let moved = group.granted();
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_ne!(group.watched[0].announced(), Some(RelayHealth::Unhealthy));
    }
    group.ways[0].set(Way::Open);
    (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents: 2 }]).unwrap());
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_ne!(group.watched[0].announced(), Some(RelayHealth::Unhealthy));
    }
    assert_eq!((group.shares(), group.granted()), (vec![32, 32], moved + 64));
    group.end().await;
}

#[tokio::test(start_paused = true)]
async fn broker_outage_for_all_relays_moves_no_partition() {
    for (relays, traffic) in [(1, ACCOUNTS), (3, ACCOUNTS), (3, 1), (4, 0)] {
        let mut group = Group::of(relays).await;
        group.ways.iter().for_each(|way| way.set(Way::Silent));
        let before = group.granted();
        for cents in 0..60 {
            (0..traffic).for_each(|account| group.store.record([Credited { account, cents }]).unwrap());
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert_eq!(group.granted(), before, "of {relays} after {} s", cents * 30);
        }
        group.join(Way::Silent);
        tokio::time::sleep(Duration::from_secs(300)).await;
        if traffic > 0 {
            assert_eq!(group.granted(), before, "by a new one beside {relays}");
        }

        group.ways.iter().for_each(|way| way.set(Way::Open));
        group
            .drained_within(Duration::from_secs(120), "when the broker is back")
            .await;
        (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents: 99 }]).unwrap());
        group.drained_within(Duration::from_secs(120), "after that").await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        let shares = group.shares();
        assert_eq!(
            (shares.len(), shares.iter().sum()),
            (relays as usize + 1, 64_usize),
            "{shares:?}"
        );
        group.end().await;
    }
}

/// Causes of rejections for all relays: a full disk, or a stream without a leader. Probes succeed
/// and trials fail.
#[tokio::test(start_paused = true)]
async fn broker_that_rejects_all_relays_moves_few_partitions() {
    for way in [Way::SilentToMessages, Way::Refused(FailureClass::Transient)] {
        let group = Group::of(3).await;
        group.ways.iter().for_each(|reached| reached.set(way));
        let before = group.granted();
        for cents in 0..60 {
            (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents }]).unwrap());
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        let moved = group.granted() - before;
        assert!(moved <= 64 * 3, "{way:?}: {moved} moves in half an hour");
        group.ways.iter().for_each(|reached| reached.set(Way::Open));
        group
            .drained_within(Duration::from_secs(180), "when it takes them again")
            .await;
        group.end().await;
    }
}

/// The relay's credentials allow probes but no publishing.
#[tokio::test(start_paused = true)]
async fn failing_trials_become_rare_and_delay_a_message_once() {
    let group = Group::of(2).await;
    group.ways[0].set(Way::SilentToMessages);
    let before = group.granted();
    let mut late = Vec::new();
    for cents in 0..360 {
        (0..ACCOUNTS).for_each(|account| group.store.record([Credited { account, cents }]).unwrap());
        let recorded_at = Instant::now();
        group
            .drained_within(quick().lease_ttl * 4, "beside a failing trial")
            .await;
        late.push(recorded_at.elapsed());
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let moved = group.granted() - before;
    assert!((64..64 * 20).contains(&moved), "{moved} moves in an hour");
    let slow = late.iter().filter(|took| **took > Duration::from_secs(2)).count();
    assert!(
        slow <= 16,
        "{slow} of 360 rounds were late: {:?}",
        late.iter().max()
    );
    group.end().await;
}

/// Otherwise the trial with a poison message never ends, and a failing relay keeps its partitions.
#[tokio::test(start_paused = true)]
async fn trial_with_only_a_poison_message_ends() {
    let group = Group::of(2).await;
    group.ways[0].set(Way::Silent);
    credit(&group.store, 50, 2);
    group
        .drained_within(quick().lease_ttl * 4, "by the other one")
        .await;
    group.ways[0].set(Way::Refused(FailureClass::Unclassified));
    while group.shares() != [32, 32] {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(group.watched[0].announced(), Some(RelayHealth::Recovering));
    let mut account = 1000;
    while group.pending() == 0 {
        group.store.record([Credited { account, cents: 1 }]).unwrap();
        account += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(quick().lease_ttl * 2).await;
    assert_eq!(group.watched[0].announced(), Some(RelayHealth::Unknown));

    group.ways[1].set(Way::SilentToMessages);
    group.ways[0].set(Way::Open);
    credit(&group.store, 50, 2);
    group
        .drained_within(quick().lease_ttl * 6, "by the one that came back")
        .await;
    group.end().await;
}

#[tokio::test(start_paused = true)]
async fn lone_relay_keeps_its_partitions() {
    let group = Group::of(1).await;
    group.ways[0].set(Way::Silent);
    credit(&group.store, 50, 2);
    tokio::time::sleep(Duration::from_secs(1800)).await;
    assert_eq!((group.shares(), group.granted()), (vec![64], 64));
    assert!(is_stuck(&group.health[0].now()), "{}", group.health[0].now());
    group.ways[0].set(Way::Open);
    group.drained_within(Duration::from_secs(60), "at once").await;
    group.end().await;
}

#[tokio::test(start_paused = true)]
async fn relay_takes_back_partitions_of_a_dead_relay() {
    let mut group = Group::of(2).await;
    group.ways[0].set(Way::Silent);
    credit(&group.store, 50, 2);
    group
        .drained_within(quick().lease_ttl * 4, "by the other one")
        .await;
    tokio::time::sleep(quick().lease_ttl).await;
    assert_eq!(group.shares(), [64]);
    group.runs.pop().unwrap().abort();
    group.ways[0].set(Way::Open);
    credit(&group.store, 50, 2);
    group
        .drained_within(quick().lease_ttl * 5, "by the one that is left")
        .await;
    assert_eq!(group.shares(), [64]);
    assert_eq!(group.end().await.len(), 1);
}
