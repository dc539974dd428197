//! The log relay with an in-memory store, log and broker.

mod failures;
mod gauges;
mod hand_over;
mod paused;

use std::time::Duration;

use outbox_core::log::Position;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{
    Aggregate, DomainEvent, EventPolicy, Events, FailureClass, Health, MessageStatus, NewMessage,
    PoisonPolicy, RelayConfig, RelayReport, Retention, Selection,
};
use outbox_log::{LogConfig, LogRelay, LogStatus};
use outbox_testing::Operator as _;
use outbox_testing::{Ledger, MemoryBroker, MemoryLog, MemoryPublisher, MemoryStore};

use MessageStatus::{Dead, Published, Waiting};

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

fn statuses(store: &MemoryStore, account: u32) -> Vec<MessageStatus> {
    let aggregate = Aggregate::new("account", account.to_string());
    store
        .rows()
        .into_iter()
        .filter(|row| *row.aggregate() == aggregate)
        .map(|row| row.status)
        .collect()
}

const LOGGED: MessageStatus = MessageStatus::Logged;

type MemoryLogRelay = LogRelay<MemoryStore, MemoryLog, MemoryPublisher>;

struct Logged {
    store: MemoryStore,
    log: MemoryLog,
    broker: MemoryBroker,
}

impl Logged {
    fn new() -> Self {
        let store = MemoryStore::new();
        Self {
            log: store.log(),
            store,
            broker: MemoryBroker::new(),
        }
    }

    fn relay(&self) -> MemoryLogRelay {
        self.relay_with(quick(), LogConfig::default())
    }

    fn relay_with(&self, config: RelayConfig, log_config: LogConfig) -> MemoryLogRelay {
        LogRelay::new(self.store.clone(), self.log.clone(), self.broker.publisher())
            .with_config(config)
            .with_log_config(log_config)
    }

    async fn run(&self, relay: &MemoryLogRelay, scenario: impl Future<Output = ()>) -> RelayReport {
        let _alone = outbox_core::wake::isolate();
        let shutdown = CancellationToken::new();
        let scenario = async {
            scenario.await;
            shutdown.cancel();
        };
        let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
        report.unwrap()
    }

    async fn drained(&self) {
        tokio::time::timeout(Duration::from_secs(600), self.store.until_drained())
            .await
            .expect("everything is published");
    }

    fn assert_balanced(&self) {
        Ledger::of(&self.store, &self.broker).assert_balanced();
    }
}

fn credit_elsewhere(store: &MemoryStore) {
    let recording = || {
        let _elsewhere = outbox_core::wake::isolate();
        credit(store, 1, 1);
    };
    std::thread::scope(|scope| scope.spawn(recording).join().unwrap());
}

async fn sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn message_of_the_log_waits_for_no_poll() {
    let logged = Logged::new();
    let poll = Duration::from_secs(5);
    let config = RelayConfig::default().poll_min(poll).poll_max(poll);
    let relay = logged.relay_with(config, LogConfig::default());
    let one_by_one = async {
        credit(&logged.store, 1, 1);
        logged.drained().await;
        let start = tokio::time::Instant::now();
        for count in 2..=20 {
            credit_elsewhere(&logged.store);
            while logged.broker.messages().len() < count {
                sleep(1).await;
            }
        }
        let elapsed = start.elapsed();
        assert!(elapsed < poll, "{elapsed:?} by the paused clock");
    };
    logged.run(&relay, one_by_one).await;
    logged.assert_balanced();
}

/// The table holds more pending messages than the relay of the log can track.
#[tokio::test(start_paused = true)]
async fn a_backlog_of_the_table_is_published_before_the_log() {
    let mut logged = Logged::new();
    logged.broker = MemoryBroker::new().with_latency(Duration::from_millis(1));
    logged.store.end_log();
    credit(&logged.store, 50, 400);
    let _log = logged.store.log();
    credit(&logged.store, 50, 10);
    let relay = logged.relay();
    let health = relay.health();
    let mut has_waited = false;
    let watch = async {
        while logged.broker.publishes() < 20_500 {
            has_waited |= health.status().waits_for_table;
            sleep(1).await;
        }
        logged.drained().await;
    };
    logged.run(&relay, watch).await;
    assert!(has_waited);
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn poison_message_halts_only_its_aggregate() {
    let logged = Logged::new();
    credit(&logged.store, 10, 3);
    logged.broker.fail_matching(
        |message| message.aggregate.id == "4" && message.sequence == Some(2),
        FailureClass::Permanent,
    );
    let relay = logged.relay();
    let report = logged
        .run(&relay, async {
            while statuses(&logged.store, 4) != [LOGGED, Dead, Waiting] {
                sleep(10).await;
            }
            credit(&logged.store, 10, 1);
            sleep(5_000).await;
        })
        .await;
    assert_eq!((report.published, report.dead_letters), (28 + 9, 1));
    assert_eq!(statuses(&logged.store, 4), [LOGGED, Dead, Waiting, Waiting]);
    assert_eq!(
        logged.log.stored(),
        Position(400),
        "the position passes messages of the table"
    );

    logged.broker.clear_faults();
    logged.store.retry(&Selection::dead_letters()).await.unwrap();
    let relay = logged.relay();
    logged
        .run(&relay, async {
            logged.drained().await;
            credit(&logged.store, 10, 1);
            logged.drained().await;
        })
        .await;
    assert_eq!(
        statuses(&logged.store, 4),
        [LOGGED, Published, Published, Published, LOGGED],
        "the aggregate belongs to the log again"
    );
    logged.assert_balanced();
}

/// A dead letter with policy `Continue` blocks no message. Later messages come from the table at
/// first.
#[tokio::test(start_paused = true)]
async fn aggregate_continues_after_a_nonhalting_dead_letter() {
    let logged = Logged::new();
    let config = quick().policy(EventPolicy::default().on_poison(PoisonPolicy::Continue));
    credit(&logged.store, 2, 5);
    logged
        .broker
        .fail_matching(|message| message.sequence == Some(2), FailureClass::Permanent);
    let relay = logged.relay_with(config, LogConfig::default());
    logged
        .run(&relay, async {
            logged.drained().await;
            credit(&logged.store, 2, 2);
            logged.drained().await;
        })
        .await;
    for account in [1, 2] {
        let expected = [LOGGED, Dead, Published, Published, Published, LOGGED, LOGGED];
        assert_eq!(statuses(&logged.store, account), expected);
    }
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn temporarily_rejected_aggregate_keeps_its_order() {
    let logged = Logged::new();
    credit(&logged.store, 20, 5);
    logged
        .broker
        .fail_matching(|message| message.aggregate.id == "7", FailureClass::Transient);
    let relay = logged.relay();
    let report = logged
        .run(&relay, async {
            for _ in 0..20 {
                sleep(200).await;
                credit(&logged.store, 20, 1);
            }
            logged.broker.clear_faults();
            logged.drained().await;
        })
        .await;
    assert!(report.failed > 0, "{report:?}");
    assert_eq!(
        statuses(&logged.store, 3),
        [LOGGED; 25],
        "messages of other aggregates never leave the log"
    );
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn delayed_message_waits_in_the_table_with_its_aggregate() {
    let logged = Logged::new();
    let later = logged.store.now() + Duration::from_secs(30);
    for account in 0..200 {
        let credited = |cents| Credited { account, cents };
        let delayed = NewMessage::from_event(&credited(2)).unwrap().available_at(later);
        let events = Events::new().with(credited(1)).with(delayed);
        logged.store.record(events).unwrap();
        logged.store.record([credited(3)]).unwrap();
    }
    let relay = logged.relay();
    logged
        .run(&relay, async {
            sleep(10_000).await;
            assert_eq!(logged.broker.messages().len(), 200);
            assert_eq!(logged.log.stored(), Position(4_000));
            logged.drained().await;
            credit(&logged.store, 5, 1);
            logged.drained().await;
        })
        .await;
    assert_eq!(statuses(&logged.store, 3), [LOGGED, Published, Published, LOGGED]);
    logged.assert_balanced();
}

/// If the relay were busy waiting, the test would never end, because the clock is paused.
#[tokio::test(start_paused = true)]
async fn delayed_message_waits_for_the_message_in_flight() {
    let mut logged = Logged::new();
    logged.broker = MemoryBroker::new().with_latency(Duration::from_secs(2));
    let later = logged.store.now() + Duration::from_secs(30);
    let delayed = NewMessage::from_event(&Credited { account: 1, cents: 2 });
    logged.store.record([Credited { account: 1, cents: 1 }]).unwrap();
    let events = Events::new().with(delayed.unwrap().available_at(later));
    logged.store.record(events).unwrap();
    let relay = logged.relay();
    logged.run(&relay, logged.drained()).await;
    assert_eq!(statuses(&logged.store, 1), [LOGGED, Published]);
    logged.assert_balanced();
}

/// A drain must not end at a rejected settlement before it reaches the log.
#[tokio::test(start_paused = true)]
async fn refused_verdict_does_not_end_a_drain() {
    let logged = Logged::new();
    logged.store.end_log();
    credit(&logged.store, 1, 1);
    let refused = logged.store.rows()[0].message.id;
    let _log = logged.store.log();
    credit(&logged.store, 5, 3);
    logged.store.refuse_verdicts(&[refused]);
    let relay = logged.relay();
    relay.drain().await.expect_err("a verdict was refused");
    assert_eq!(logged.broker.messages().len(), 16, "the log was not drained");
    logged.store.refuse_verdicts(&[]);
    relay.drain().await.unwrap();
    logged.assert_balanced();
}

/// The end of a transaction larger than the window is read only when its first messages are
/// decided.
#[tokio::test(start_paused = true)]
async fn transaction_larger_than_the_window_is_published() {
    for (config, most) in [
        (LogConfig::default().window(3), 3),
        (LogConfig::default().window_bytes(1), 1),
    ] {
        let logged = Logged::new();
        let event = |cents| Credited {
            account: cents % 7,
            cents,
        };
        let events = (0..20).fold(Events::new(), |events, cents| events.with(event(cents)));
        logged.broker.set_down(true);
        logged.store.record(events).unwrap();
        let relay = logged.relay_with(quick(), config);
        logged
            .run(&relay, async {
                sleep(10_000).await;
                assert_eq!(relay.health().status().undecided, most);
                logged.broker.set_down(false);
                logged.drained().await;
            })
            .await;
        assert_eq!(logged.broker.messages().len(), 20);
        logged.assert_balanced();
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_message_becomes_a_dead_letter_of_the_table() {
    let logged = Logged::new();
    credit(&logged.store, 2, 2);
    let id = logged.store.rows()[0].message.id;
    assert!(logged.store.corrupt(id));
    let relay = logged.relay();
    let report = logged
        .run(&relay, async {
            while statuses(&logged.store, 1) != [Dead, Waiting] {
                sleep(10).await;
            }
        })
        .await;
    assert_eq!(report.dead_letters, 1, "the application gets one report");
}

#[tokio::test(start_paused = true)]
async fn expired_logged_messages_are_deleted() {
    let logged = Logged::new();
    let config = quick().retention(Retention::KeepFor(Duration::from_secs(7_200)));
    let relay = logged.relay_with(config, LogConfig::default());
    logged
        .run(&relay, async {
            credit(&logged.store, 10, 3);
            logged.drained().await;
            sleep(7_000_000).await;
            assert_eq!(logged.store.rows().len(), 30);
            sleep(400_000).await;
            assert_eq!(logged.store.rows().len(), 0);
        })
        .await;
    assert_eq!(logged.broker.messages().len(), 30);
}

#[tokio::test(start_paused = true)]
async fn log_settings_out_of_bounds_are_refused() {
    let logged = Logged::new();
    let relay = logged.relay_with(quick(), LogConfig::default().window_bytes(0));
    let error = relay.run(CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("use "), "{error}");
    assert_eq!(logged.relay().health().status(), LogStatus::default());
}
