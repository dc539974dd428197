//! The cases of the suite.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use outbox_core::{Message, NewMessage};
use outbox_inbox::Handler;
use outbox_inbox::testing::{Outcome, dead_letters};
use outbox_testing::MemoryDedupStore;
use sea_orm::DatabaseConnection;
use time::OffsetDateTime;
use tokio::sync::Barrier;

use super::handlers::{LineNoted, Notes, Traits, note_by_message_id, note_elsewhere};
use super::mistakes::{Mistake, Process};
use crate::orders::crash_after;
use crate::support::{SOON, TestDb, quick, slow};

const DUPLICATE: u64 = 1;
const CONCURRENT: u64 = 2;
const CRASH: u64 = 3;
const REORDER: u64 = 4;
const POISON: u64 = 5;
const KEY: u64 = 6;
const CONSUMERS: u64 = 7;

struct Suite<'a> {
    test: &'a TestDb,
    pool: DatabaseConnection,
    traits: Traits,
    notes: Notes,
    store: MemoryDedupStore,
    mistake: Option<Mistake>,
    meeting: Arc<Barrier>,
}

pub(super) async fn run<H: Handler>(test: &TestDb, traits: Traits) {
    let suite = Suite::prepare(test, traits, None).await;
    suite.a_duplicate_has_no_second_effect::<H>().await;
    suite.concurrent_duplicates_have_one_effect::<H>().await;
    suite.a_crash_before_the_commit_leaves_nothing::<H>().await;
    suite.reordered_messages_take_effect_once::<H>().await;
    suite.poison_becomes_a_dead_letter::<H>().await;
    suite.each_consumer_has_its_own_effect::<H>().await;
    if traits.by_key {
        suite.another_event_with_the_key_is_a_duplicate::<H>().await;
    }
}

pub(super) async fn failure(test: &TestDb, mistake: Mistake) -> Option<String> {
    let suite = Suite::prepare(test, Traits::new("message_id"), Some(mistake)).await;
    test.execute("CREATE TABLE seen (consumer TEXT, id TEXT)").await;
    let case = async {
        match mistake {
            Mistake::ChecksThenActs => {
                suite
                    .concurrent_duplicates_have_one_effect::<note_by_message_id>()
                    .await;
            }
            Mistake::AcknowledgesFirst => {
                suite
                    .a_crash_before_the_commit_leaves_nothing::<note_by_message_id>()
                    .await;
            }
            Mistake::ForgetsConsumer => {
                suite
                    .each_consumer_has_its_own_effect::<note_by_message_id>()
                    .await;
            }
        }
    };
    let panic = AssertUnwindSafe(case).catch_unwind().await.err()?;
    let text = panic.downcast::<String>();
    Some(text.map_or_else(|_| "a panic without a text".to_owned(), |text| *text))
}

fn message(account: u64, line: u64) -> Message {
    NewMessage::from_event(&LineNoted { account, line })
        .unwrap()
        .into_message(Some(line), OffsetDateTime::now_utc())
}

impl<'a> Suite<'a> {
    async fn prepare(test: &'a TestDb, traits: Traits, mistake: Option<Mistake>) -> Self {
        test.execute("CREATE TABLE notes (id BIGINT PRIMARY KEY, noted BIGINT)")
            .await;
        let ids = (1..=7).flat_map(|account| (1..=5).chain([666]).map(move |line| account * 1000 + line));
        let rows: Vec<_> = ids.map(|id| format!("({id}, 0)")).collect();
        test.execute(&format!("INSERT INTO notes VALUES {}", rows.join(", ")))
            .await;
        if let Some(login) = test.login() {
            login.grant(test, &["SELECT, UPDATE ON notes"]).await;
        }
        Self {
            test,
            pool: test.pool().await,
            traits,
            notes: Notes::default(),
            store: MemoryDedupStore::new(),
            mistake,
            meeting: Arc::new(Barrier::new(2)),
        }
    }

    fn process(&self, db: DatabaseConnection) -> Process {
        let mistake = (self.mistake, &self.meeting);
        Process::new(db, &self.notes, &self.store, quick().attempts_max(3), mistake)
    }

    fn own(&self) -> Process {
        self.process(self.pool.clone())
    }

    async fn effects(&self, account: u64) -> Vec<u64> {
        if self.traits.leased {
            let outside = self.notes.0.outside.lock().unwrap();
            return outside.get(&account).cloned().unwrap_or_default();
        }
        let (from, what) = if self.traits.name == "natural" {
            (
                format!(
                    "notes WHERE noted = 1 AND id > {account}000 AND id < {}000",
                    account + 1
                ),
                "id",
            )
        } else {
            (
                format!("effects WHERE consumer = 'notes' AND order_id = {account}"),
                "stable_key",
            )
        };
        let sql = format!("SELECT {what} FROM {from}");
        let statement = sea_orm::Statement::from_string(self.test.sql_backend(), sql);
        let rows = sea_orm::ConnectionTrait::query_all_raw(&self.test.db, statement)
            .await
            .unwrap();
        rows.iter()
            .map(|row| match what {
                "id" => u64::try_from(row.try_get::<i64>("", what).unwrap() % 1000).unwrap(),
                _ => row.try_get::<String>("", what).unwrap().parse().unwrap(),
            })
            .collect()
    }

    async fn a_duplicate_has_no_second_effect<H: Handler>(&self) {
        let (harness, message) = (self.own(), message(DUPLICATE, 1));
        let outcome = harness.redeliver_message::<H>(&message, 1).await.unwrap();
        assert_eq!(outcome, Outcome::Handled);
        for delivery in [1, 2, 3] {
            let outcome = harness.redeliver_message::<H>(&message, delivery).await.unwrap();
            let expected = if self.traits.name == "natural" && delivery < 3 {
                Outcome::Handled
            } else {
                Outcome::Duplicate
            };
            assert_eq!(outcome, expected, "delivery {delivery}");
        }
        assert_eq!(self.effects(DUPLICATE).await, [1]);
    }

    async fn concurrent_duplicates_have_one_effect<H: Handler>(&self) {
        let pools = [self.pool.clone(), self.test.connect_again().await];
        let harnesses = pools.map(|db| Arc::new(self.process(db)));
        for line in 1..=5 {
            let message = Arc::new(message(CONCURRENT, line));
            let deliveries = (0..16).map(|delivery| {
                let (harness, message) = (harnesses[delivery % 2].clone(), message.clone());
                tokio::spawn(async move {
                    loop {
                        let outcome = harness.deliver_message::<H>(&message).await.unwrap();
                        if outcome != Outcome::Later {
                            return outcome;
                        }
                        tokio::task::yield_now().await;
                    }
                })
            });
            let mut outcomes = Vec::new();
            for delivery in deliveries.collect::<Vec<_>>() {
                outcomes.push(tokio::time::timeout(SOON, delivery).await.unwrap().unwrap());
            }
            let handled = outcomes.iter().filter(|outcome| **outcome == Outcome::Handled);
            if self.traits.name != "natural" {
                assert_eq!(handled.count(), 1, "line {line} has one effect: {outcomes:?}");
            }
        }
        let mut effects = self.effects(CONCURRENT).await;
        effects.sort_unstable();
        assert_eq!(effects, [1, 2, 3, 4, 5]);
    }

    async fn a_crash_before_the_commit_leaves_nothing<H: Handler>(&self) {
        let message = message(CRASH, 1);
        let (connect, notes, store) = (self.test.connector(), Notes::that_hang_at(1), self.store.clone());
        let (crashing, mistake, meeting) = (message.clone(), self.mistake, self.meeting.clone());
        crash_after(move || async move {
            let harness = Process::new(connect().await, &notes, &store, slow(), (mistake, &meeting));
            let delivery = tokio::spawn(async move { harness.deliver_message::<H>(&crashing).await });
            notes.0.hanging.acquire().await.unwrap().forget();
            std::mem::forget(delivery);
        })
        .await;
        assert!(self.effects(CRASH).await.is_empty());
        let outcome = self.own().redeliver_message::<H>(&message, 2).await.unwrap();
        if self.traits.leased {
            assert_eq!(outcome, Outcome::Later);
            return;
        }
        assert_eq!(outcome, Outcome::Handled, "the crash left no effect");
        assert_eq!(self.effects(CRASH).await, [1]);
    }

    async fn reordered_messages_take_effect_once<H: Handler>(&self) {
        let harness = self.own();
        let messages: Vec<_> = (1..=4).map(|line| message(REORDER, line)).collect();
        let mut handled = Vec::new();
        for line in [3, 1, 3, 2, 4, 1, 3, 4] {
            let outcome = harness.deliver_message::<H>(&messages[line - 1]).await.unwrap();
            handled.push((line, outcome));
        }
        let outcome = |nth: usize| handled[nth].1;
        if self.traits.ordered {
            assert_eq!(
                (outcome(0), outcome(2)),
                (Outcome::Later, Outcome::Later),
                "{handled:?}"
            );
            assert_eq!(outcome(4), Outcome::Later, "4 before 3: {handled:?}");
            assert_eq!(outcome(5), Outcome::Duplicate, "{handled:?}");
            assert_eq!(
                (outcome(6), outcome(7)),
                (Outcome::Handled, Outcome::Handled),
                "{handled:?}"
            );
            assert_eq!(self.effects(REORDER).await, [1, 2, 3, 4]);
        } else {
            let mut effects = self.effects(REORDER).await;
            effects.sort_unstable();
            assert_eq!(effects, [1, 2, 3, 4], "{handled:?}");
        }
    }

    async fn poison_becomes_a_dead_letter<H: Handler>(&self) {
        let harness = self.own();
        let poison = NewMessage::from_event(&LineNoted {
            account: POISON,
            line: 666,
        })
        .unwrap()
        .into_message(Some(1), OffsetDateTime::now_utc());
        let mut outcomes = Vec::new();
        for delivery in 1..=4 {
            outcomes.push(harness.redeliver_message::<H>(&poison, delivery).await.unwrap());
        }
        let expected = [
            Outcome::Failed,
            Outcome::Failed,
            Outcome::DeadLettered,
            Outcome::Duplicate,
        ];
        assert_eq!(outcomes, expected);
        let letters = dead_letters(&self.test.db, H::REGISTRATION.consumer)
            .await
            .unwrap();
        assert_eq!(letters.len(), 1);
        assert_eq!(
            (letters[0].event_id, letters[0].attempts),
            (Some(poison.event_id), 3)
        );
        assert_eq!(letters[0].raw_payload(), poison.payload);
        assert!(self.effects(POISON).await.is_empty());
        let next = message(POISON, 2);
        let outcome = harness.redeliver_message::<H>(&next, 1).await.unwrap();
        assert_eq!(outcome, Outcome::Handled);
        assert_eq!(self.effects(POISON).await, [2]);
    }

    async fn each_consumer_has_its_own_effect<H: Handler>(&self) {
        let (process, message) = (self.own(), message(CONSUMERS, 1));
        let outcome = process.deliver_message::<note_elsewhere>(&message).await.unwrap();
        assert_eq!(outcome, Outcome::Handled);
        let outcome = process.deliver_message::<H>(&message).await.unwrap();
        assert_eq!(outcome, Outcome::Handled, "the other consumer handled it");
        assert_eq!(self.effects(CONSUMERS).await, [1]);
    }

    async fn another_event_with_the_key_is_a_duplicate<H: Handler>(&self) {
        let harness = self.own();
        assert_eq!(
            harness.deliver_message::<H>(&message(KEY, 1)).await.unwrap(),
            Outcome::Handled
        );
        for delivery in [1, 2] {
            let outcome = harness
                .redeliver_message::<H>(&message(KEY, 1), delivery)
                .await
                .unwrap();
            assert_eq!(outcome, Outcome::Duplicate);
        }
        assert_eq!(self.effects(KEY).await, [1]);
    }
}
