//! A reader that reaches the database but not the broker, and standby relays.

use outbox_core::{OutboxStore as _, RelayHealth};
use outbox_log::LogHealthCheck;
use outbox_testing::{Reached, Way};
use tokio::task::JoinHandle;

use super::*;

struct Readers {
    logged: Logged,
    ways: Vec<Reached>,
    health: Vec<LogHealthCheck>,
    stop: Vec<CancellationToken>,
    runs: Vec<JoinHandle<RelayReport>>,
    _alone: outbox_core::wake::Isolation,
}

impl Readers {
    async fn of(relays: usize) -> Self {
        Self::configured(relays, &quick()).await
    }

    async fn configured(relays: usize, config: &RelayConfig) -> Self {
        let mut readers = Self {
            logged: Logged::new(),
            ways: Vec::new(),
            health: Vec::new(),
            stop: Vec::new(),
            runs: Vec::new(),
            _alone: outbox_core::wake::isolate(),
        };
        for number in 0..relays {
            let (stop, reached) = (CancellationToken::new(), Reached::new(&readers.logged.broker));
            let logged = &readers.logged;
            let relay = LogRelay::new(logged.store.clone(), logged.log.clone(), reached.clone())
                .with_config(config.clone().seed(Some(number as u64)));
            readers.health.push(relay.health());
            readers.ways.push(reached);
            readers.stop.push(stop.clone());
            readers
                .runs
                .push(tokio::spawn(async move { relay.run(stop).await.unwrap() }));
            readers.until_reads(0).await;
        }
        readers
    }

    async fn until_reads(&self, reader: usize) {
        let reads = async {
            while !self.health[reader].status().reads {
                sleep(100).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(3_600), reads)
            .await
            .unwrap_or_else(|_| panic!("relay {reader} does not read the log"));
    }

    async fn record_for(&self, seconds: u32) {
        for _ in 0..seconds {
            credit(&self.logged.store, 8, 1);
            sleep(1_000).await;
        }
    }

    async fn end(self) {
        self.logged.drained().await;
        self.stop.iter().for_each(CancellationToken::cancel);
        for run in self.runs {
            run.await.unwrap();
        }
        let ledger = Ledger::of(&self.logged.store, &self.logged.broker);
        ledger.assert_balanced();
        assert_eq!(ledger.copies(), 0);
    }
}

/// Typical causes in production: expired credentials, a firewall, or a host without a network to
/// the broker.
#[tokio::test(start_paused = true)]
async fn reader_without_broker_leaves_the_log_to_a_healthy_relay() {
    for way in [
        Way::Silent,
        Way::SilentToMessages,
        Way::Refused(FailureClass::Transient),
        Way::Refused(FailureClass::Configuration),
    ] {
        let readers = Readers::of(2).await;
        readers.record_for(3).await;
        readers.ways[0].set(way);
        let cut_off = async {
            readers.record_for(10).await;
            readers.logged.drained().await;
        };
        tokio::time::timeout(quick().lease_ttl * 6, cut_off)
            .await
            .unwrap_or_else(|_| panic!("{way:?}: nothing is published"));
        readers.until_reads(1).await;
        readers.record_for(3_600).await;
        assert!(
            readers.health[1].status().reads,
            "{way:?}: the log stays with the relay that can publish"
        );

        readers.ways[0].set(Way::Open);
        readers.stop[1].cancel();
        readers.record_for(60).await;
        readers.until_reads(0).await;
        readers.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn log_relay_announces_failure_and_recovery() {
    let readers = Readers::of(1).await;
    let announced = async || {
        let relays = readers.logged.store.relays().await.unwrap();
        relays.iter().map(|relay| relay.health).collect::<Vec<_>>()
    };
    readers.record_for(60).await;
    assert_eq!(announced().await, [RelayHealth::Healthy]);
    readers.ways[0].set(Way::Silent);
    readers.record_for(300).await;
    assert_eq!(announced().await, [RelayHealth::Unhealthy]);
    readers.ways[0].set(Way::Open);
    readers.logged.drained().await;
    readers.record_for(300).await;
    assert_eq!(announced().await, [RelayHealth::Healthy]);
    readers.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_has_left_the_log_announces_no_trial() {
    let short = quick().lease_ttl(Duration::from_secs(3));
    let readers = Readers::configured(1, &short).await;
    readers.record_for(3).await;
    readers.ways[0].set(Way::SilentToMessages);
    let (mut tries, mut leaves, mut away) = (0, 0, Vec::new());
    for _ in 0..1_200 {
        credit(&readers.logged.store, 1, 1);
        sleep(100).await;
        let relays = readers.logged.store.relays().await.unwrap();
        let is_trying = relays.iter().any(|relay| relay.health == RelayHealth::Recovering);
        if readers.health[0].status().reads {
            tries += u32::from(is_trying);
            away.clear();
        } else {
            away.push(is_trying);
            assert!(away.len() <= 15 || !is_trying, "{away:?}");
            leaves = leaves.max(away.len());
        }
    }
    assert!(tries > 0 && leaves > 40, "{tries} {leaves}");
    readers.ways[0].set(Way::Open);
    readers.end().await;
}

#[tokio::test(start_paused = true)]
async fn lone_reader_keeps_the_log_during_a_broker_outage() {
    let readers = Readers::of(1).await;
    readers.ways[0].set(Way::Silent);
    for _ in 0..120 {
        credit(&readers.logged.store, 8, 1);
        sleep(60_000).await;
    }
    let openings = readers.logged.log.openings();
    assert!((2..20).contains(&openings), "{openings}");
    readers.ways[0].set(Way::Open);
    readers.end().await;
}

#[tokio::test(start_paused = true)]
async fn log_stays_with_the_first_relay_that_can_publish() {
    let readers = Readers::of(3).await;
    readers.ways.iter().for_each(|reached| reached.set(Way::Silent));
    for _ in 0..120 {
        credit(&readers.logged.store, 8, 1);
        sleep(60_000).await;
    }
    let openings = readers.logged.log.openings();
    assert!((3..60).contains(&openings), "{openings}");
    readers.ways[2].set(Way::Open);
    readers.until_reads(2).await;
    readers.record_for(3_600).await;
    assert!(readers.health[2].status().reads);
    let settled = readers.logged.log.openings();
    readers.record_for(3_600).await;
    assert_eq!(
        readers.logged.log.openings(),
        settled,
        "the log stays with this relay"
    );
    readers.end().await;
}
