//! The cases of the suite.

use std::sync::Arc;

use outbox_core::testing::MemoryDedupStore;
use outbox_core::{Message, NewMessage};
use outbox_inbox::Handler;
use outbox_inbox::testing::{Harness, Outcome, dead_letters};
use sea_orm::DatabaseConnection;
use time::OffsetDateTime;

use super::handlers::{LineNoted, Notes, Traits};
use crate::support::{SOON, TestDb, quick, slow};

/// Accounts, one for each case.
const DUPLICATE: u64 = 1;
const CONCURRENT: u64 = 2;
const CRASH: u64 = 3;
const REORDER: u64 = 4;
const POISON: u64 = 5;
const KEY: u64 = 6;

struct Suite<'a> {
    test: &'a TestDb,
    traits: Traits,
    notes: Notes,
    store: MemoryDedupStore,
}

/// Runs all cases for one handler.
pub(super) async fn run<H: Handler>(test: &TestDb, traits: Traits) {
    test.execute("CREATE TABLE notes (id BIGINT PRIMARY KEY, noted BIGINT)")
        .await;
    for id in (1..=6).flat_map(|account| (1..=40).chain([666]).map(move |line| account * 1000 + line)) {
        test.execute(&format!("INSERT INTO notes VALUES ({id}, 0)")).await;
    }
    let suite = Suite {
        test,
        traits,
        notes: Notes::default(),
        store: MemoryDedupStore::new(),
    };
    suite.a_duplicate_has_no_second_effect::<H>().await;
    suite.concurrent_duplicates_have_one_effect::<H>().await;
    suite.a_crash_before_the_commit_leaves_nothing::<H>().await;
    suite.what_comes_in_another_order_takes_effect_once::<H>().await;
    suite.poison_becomes_a_dead_letter::<H>().await;
    if traits.by_key {
        suite.another_event_with_the_key_is_a_duplicate::<H>().await;
    }
}

fn message(account: u64, line: u64) -> Message {
    NewMessage::from_event(&LineNoted { account, line })
        .unwrap()
        .into_message(Some(line), OffsetDateTime::now_utc())
}

impl Suite<'_> {
    fn harness(&self, db: DatabaseConnection, notes: &Notes) -> Harness {
        Harness::new(db)
            .with_state(notes.clone())
            .with_dedup_store(self.store.clone())
            .with_config(quick().attempts_max(3))
    }

    fn own(&self) -> Harness {
        self.harness(self.test.db.clone(), &self.notes)
    }

    /// How often each line of an account took effect, in sequence where the strategy keeps one.
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
            (format!("effects WHERE order_id = {account}"), "stable_key")
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
        assert_eq!(
            harness.deliver_message::<H>(&message).await.unwrap(),
            Outcome::Handled
        );
        // First as a copy that the broker does not recognize, then as a delivery that it repeats.
        for delivery in [1, 2, 3] {
            let outcome = harness.redeliver_message::<H>(&message, delivery).await.unwrap();
            // Strategy `natural` leaves a row only for a repeated delivery, whose attempts are counted.
            let expected = if self.traits.name == "natural" && delivery < 3 {
                Outcome::Handled
            } else {
                Outcome::Duplicate
            };
            assert_eq!(outcome, expected, "delivery {delivery}");
        }
        assert_eq!(self.effects(DUPLICATE).await, [1]);
    }

    /// 16 deliveries of each of several messages over two pools, which the database sees as two processes.
    async fn concurrent_duplicates_have_one_effect<H: Handler>(&self) {
        let pools = [self.test.db.clone(), self.test.connect_again().await];
        let harnesses = pools.map(|db| Arc::new(self.harness(db, &self.notes)));
        for line in 1..=5 {
            let message = Arc::new(message(CONCURRENT, line));
            let deliveries = (0..16).map(|delivery| {
                let (harness, message) = (harnesses[delivery % 2].clone(), message.clone());
                tokio::spawn(async move {
                    loop {
                        let outcome = harness.deliver_message::<H>(&message).await.unwrap();
                        // Another task is handling the message. A broker would deliver it again.
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
                assert_eq!(handled.count(), 1, "line {line}: {outcomes:?}");
            }
        }
        let mut effects = self.effects(CONCURRENT).await;
        effects.sort_unstable();
        assert_eq!(effects, [1, 2, 3, 4, 5]);
    }

    /// A process crashes while the handler runs, after the handler has written its effect.
    async fn a_crash_before_the_commit_leaves_nothing<H: Handler>(&self) {
        let message = message(CRASH, 1);
        let (connect, notes, store) = (self.test.connector(), Notes::that_hang_at(1), self.store.clone());
        let crashing = message.clone();
        let process = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let harness = Harness::new(connect().await)
                    .with_state(notes.clone())
                    .with_dedup_store(store)
                    .with_config(slow());
                let delivery = tokio::spawn(async move { harness.deliver_message::<H>(&crashing).await });
                notes.0.hanging.acquire().await.unwrap().forget();
                // Not dropped, because dropping would end the run in an orderly way.
                std::mem::forget(delivery);
            });
            runtime.shutdown_timeout(SOON);
        });
        tokio::task::spawn_blocking(move || process.join().unwrap())
            .await
            .unwrap();
        assert!(self.effects(CRASH).await.is_empty());
        let outcome = self.own().redeliver_message::<H>(&message, 2).await.unwrap();
        if self.traits.leased {
            // The claim of the crashed process lasts until its lease has passed; the suite of the deduplication stores shows the rest.
            assert_eq!(outcome, Outcome::Later);
            return;
        }
        assert_eq!(outcome, Outcome::Handled);
        assert_eq!(self.effects(CRASH).await, [1]);
    }

    async fn what_comes_in_another_order_takes_effect_once<H: Handler>(&self) {
        let harness = self.own();
        let messages: Vec<_> = (1..=4).map(|line| message(REORDER, line)).collect();
        // The sequence 3 1 3 2 4 1 3 4 has messages that are too early, in turn, repeated, and repeated late.
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
        assert_eq!(letters[0].payload, poison.payload);
        assert!(self.effects(POISON).await.is_empty());
        // The dead letter blocks no message, not even in its own account.
        let next = message(POISON, 2);
        assert_eq!(
            harness.deliver_message::<H>(&next).await.unwrap(),
            Outcome::Handled
        );
        assert_eq!(self.effects(POISON).await, [2]);
    }

    async fn another_event_with_the_key_is_a_duplicate<H: Handler>(&self) {
        let harness = self.own();
        assert_eq!(
            harness.deliver_message::<H>(&message(KEY, 1)).await.unwrap(),
            Outcome::Handled
        );
        // Another producer recorded it once more: another event with the same number.
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
