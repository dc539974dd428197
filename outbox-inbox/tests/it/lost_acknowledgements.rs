//! Lost acknowledgements: an applied message is neither dead-lettered nor handled again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::dedup::DedupFuture;
use outbox_core::{ClaimToken, DedupKey, DedupStore, DedupStoreError, Message, StoreClaim};
use outbox_inbox::testing::{Harness, Outcome, dead_letters};
use outbox_inbox::{
    DeadLetterSelection, DeadLetters, Event, Handler, HandlerError, HandlerState, Inbox, Router, Tx,
    idempotent_handler,
};
use outbox_testing::{MemoryBroker, MemoryDedupStore, eventually};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend};
use tokio_util::sync::CancellationToken;

use crate::on_every_backend;
use crate::orders::{Orders, Rule, copy, crash_after, lines, numbered, prepare, put};
use crate::runtime::{spawn, stop, within};
use crate::support::{OrderPlaced, TestDb, delivered, slow};

macro_rules! handlers {
    ($($name:ident: $consumer:literal, $strategy:ident $(($($key:tt)*))?;)*) => {$(
        #[idempotent_handler(consumer = $consumer, strategy = $strategy $(($($key)*))?)]
        pub(crate) async fn $name(event: Event<OrderPlaced>, tx: Tx<'_>, orders: HandlerState<Orders>) -> Result<(), HandlerError> {
            orders.note($consumer, &event, &tx).await
        }
    )*};
}

fn number(event: &OrderPlaced) -> String {
    format!("{}/{}", event.order_id, event.line)
}

handlers! {
    lost_message_id: "lost_message_id", message_id;
    lost_sequence: "lost_sequence", sequence;
    lost_latest: "lost_latest", sequence(gap = "0s");
    lost_patient: "lost_patient", sequence(gap = "1h");
    lost_key: "lost_key", key(self::number);
    lost_natural: "lost_natural", natural;
    lost_external_tx: "lost_external_tx", external;
}

#[idempotent_handler(
    consumer = "lost_constraint",
    strategy = constraint("markers_pkey", "PRIMARY", "markers.id")
)]
pub(crate) async fn lost_constraint(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    orders: HandlerState<Orders>,
) -> Result<(), HandlerError> {
    let id = event.order_id * 1000 + u64::from(event.line);
    tx.execute_unprepared(&format!("INSERT INTO markers (id) VALUES ({id})"))
        .await?;
    orders.note("lost_constraint", &event, &tx).await
}

#[idempotent_handler(consumer = "lost_natural_outside", strategy = natural)]
async fn lost_natural_outside(
    event: Event<OrderPlaced>,
    orders: HandlerState<Orders>,
) -> Result<(), HandlerError> {
    orders.follow(&event).await
}

#[idempotent_handler(consumer = "lost_external", strategy = external)]
async fn lost_external(event: Event<OrderPlaced>, orders: HandlerState<Orders>) -> Result<(), HandlerError> {
    orders.follow(&event).await
}

macro_rules! with_every_handler {
    ($run:ident($($argument:expr),*)) => {
        $run::<lost_message_id>($($argument),*).await;
        $run::<lost_sequence>($($argument),*).await;
        $run::<lost_latest>($($argument),*).await;
        $run::<lost_key>($($argument),*).await;
        $run::<lost_natural>($($argument),*).await;
        $run::<lost_natural_outside>($($argument),*).await;
        $run::<lost_constraint>($($argument),*).await;
        $run::<lost_external>($($argument),*).await;
        $run::<lost_external_tx>($($argument),*).await;
    };
}

pub(crate) async fn failed_rows(test: &TestDb) -> i64 {
    test.int("SELECT count(*) FROM inbox_messages WHERE status = 0")
        .await
}

async fn effects(test: &TestDb, consumer: &str, orders: &Orders) -> usize {
    match consumer {
        "lost_natural_outside" | "lost_external" => orders.seen().runs_of(1),
        _ => lines(test, consumer, 1).await.len(),
    }
}

fn expected_effects(consumer: &str) -> usize {
    match consumer {
        "lost_natural" | "lost_natural_outside" => 2,
        _ => 1,
    }
}

async fn age_rows(test: &TestDb) {
    let earlier = match test.sql_backend() {
        DbBackend::Postgres => "processed_at - interval '1 hour'",
        DbBackend::MySql => "TIMESTAMPADD(HOUR, -1, processed_at)",
        _ => "processed_at - 3600000000",
    };
    test.execute(&format!("UPDATE inbox_messages SET processed_at = {earlier}"))
        .await;
}

fn harness(db: DatabaseConnection, orders: &Orders, store: &MemoryDedupStore) -> Harness {
    Harness::new(db)
        .with_state(orders.clone())
        .with_dedup_store(store.clone())
        .with_config(slow())
}

async fn applied_message_is_never_dead_lettered(test: TestDb) {
    prepare(&test).await;
    with_every_handler!(deliver_often(&test));
}

async fn deliver_often<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (orders, message) = (Orders::default(), numbered(1, 1));
    let harness = Harness::new(test.db.clone())
        .with_state(orders.clone())
        .with_dedup_store(MemoryDedupStore::new());
    for delivery in 1..=14 {
        let outcome = harness.redeliver_message::<H>(&message, delivery).await.unwrap();
        let handled = usize::try_from(delivery).unwrap() <= expected_effects(consumer);
        let expected = if handled {
            Outcome::Handled
        } else {
            Outcome::Duplicate
        };
        assert_eq!(outcome, expected, "{consumer}, delivery {delivery}");
        age_rows(test).await;
    }
    assert_eq!(
        effects(test, consumer, &orders).await,
        expected_effects(consumer),
        "{consumer}"
    );
    assert!(dead_letters(&test.db, consumer).await.unwrap().is_empty());
    assert_eq!(failed_rows(test).await, 0, "{consumer}");
}

async fn failure_ends_when_another_process_handles_the_message(test: TestDb) {
    prepare(&test).await;
    with_every_handler!(fail_and_succeed_elsewhere(&test));
}

async fn fail_and_succeed_elsewhere<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (message, store) = (numbered(1, 1), MemoryDedupStore::new());
    let orders = Orders::default();
    orders.rule(1, Rule::Fail);
    let first = harness(test.connect_again().await, &orders, &store);
    let outcome = first.redeliver_message::<H>(&message, 1).await.unwrap();
    assert_eq!(
        (outcome, failed_rows(test).await),
        (Outcome::Failed, 1),
        "{consumer}"
    );
    drop(first);
    if !consumer.starts_with("lost_external") {
        let (connect, crashing, orders) = (test.connector(), message.clone(), Orders::default());
        orders.rule(1, Rule::Wait);
        crash_after(move || async move {
            let harness = harness(connect().await, &orders, &MemoryDedupStore::new());
            let run = tokio::spawn(async move { harness.redeliver_message::<H>(&crashing, 2).await });
            orders
                .until("the second attempt", |state| state.runs.len() == 1)
                .await;
            std::mem::forget(run);
        })
        .await;
        assert_eq!(failed_rows(test).await, 1, "{consumer}");
    }
    let orders = Orders::default();
    let third = harness(test.connect_again().await, &orders, &store);
    let outcome = third.redeliver_message::<H>(&message, 3).await.unwrap();
    assert_eq!(
        (outcome, failed_rows(test).await),
        (Outcome::Handled, 0),
        "{consumer}"
    );
    let outcome = third.redeliver_message::<H>(&message, 4).await.unwrap();
    assert_eq!(
        (outcome, failed_rows(test).await),
        (Outcome::Duplicate, 0),
        "{consumer}"
    );
    assert_eq!(effects(test, consumer, &orders).await, 1, "{consumer}");
}

async fn failure_ends_when_a_copy_is_applied(test: TestDb) {
    prepare(&test).await;
    with_every_handler!(fail_and_succeed_by_a_copy(&test));
}

async fn fail_and_succeed_by_a_copy<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (message, store, orders) = (numbered(1, 1), MemoryDedupStore::new(), Orders::default());
    let harness = harness(test.db.clone(), &orders, &store);
    orders.rule(1, Rule::Fail);
    harness.redeliver_message::<H>(&message, 1).await.unwrap();
    orders.rule(1, None);
    let failures = orders.seen().runs.len();
    assert_eq!(
        harness.deliver_message::<H>(&copy(&message)).await.unwrap(),
        Outcome::Handled,
        "{consumer}"
    );
    let again = harness.redeliver_message::<H>(&message, 2).await.unwrap();
    let runs_again = expected_effects(consumer) == 2;
    let expected = if runs_again {
        Outcome::Handled
    } else {
        Outcome::Duplicate
    };
    assert_eq!(again, expected, "{consumer}");
    assert_eq!(failed_rows(test).await, 0, "{consumer}");
    if consumer != "lost_natural_outside" && consumer != "lost_external" {
        assert_eq!(lines(test, consumer, 1).await.len(), expected_effects(consumer));
    } else {
        assert_eq!(orders.seen().runs.len() - failures, expected_effects(consumer));
    }
}

async fn waiting_for_a_turn_uses_no_attempts(test: TestDb) {
    prepare(&test).await;
    let (store, orders) = (MemoryDedupStore::new(), Orders::default());
    let harness = harness(test.db.clone(), &orders, &store);
    let messages = [numbered(1, 1), numbered(1, 2)];
    for delivery in 2..=14 {
        let outcome = harness
            .redeliver_message::<lost_sequence>(&messages[1], delivery)
            .await;
        assert_eq!(outcome.unwrap(), Outcome::Later, "delivery {delivery}");
        age_rows(&test).await;
    }
    assert_eq!(test.row().await, None);
    for message in &messages {
        let outcome = harness.redeliver_message::<lost_sequence>(message, 15).await;
        assert_eq!(outcome.unwrap(), Outcome::Handled);
    }
    assert_eq!(lines(&test, "lost_sequence", 1).await, [1, 2]);
}

async fn unknown_version_applied_elsewhere_is_no_dead_letter(test: TestDb) {
    prepare(&test).await;
    handled_by_another_version::<lost_sequence>(&test).await;
    handled_by_another_version::<lost_latest>(&test).await;
}

async fn handled_by_another_version<H: Handler>(test: &TestDb) {
    let (store, orders) = (MemoryDedupStore::new(), Orders::default());
    let harness = harness(test.db.clone(), &orders, &store);
    let message = numbered(1, 1);
    delivered::<H>(&harness, &message, 1, Outcome::Handled).await;
    let unknown = Message {
        event_version: 9,
        ..message
    };
    let outcome = harness.redeliver_message::<H>(&unknown, 2).await.unwrap();
    assert_eq!(outcome, Outcome::Duplicate, "{}", H::REGISTRATION.consumer);
}

#[derive(Debug, Clone)]
struct Deaf {
    store: MemoryDedupStore,
    deaf_for: Arc<AtomicUsize>,
}

impl DedupStore for Deaf {
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim> {
        self.store.claim(key, lease)
    }

    fn complete<'a>(
        &'a self,
        key: &'a DedupKey,
        token: ClaimToken,
        retention: Duration,
    ) -> DedupFuture<'a, bool> {
        let left = |left: usize| left.checked_sub(1);
        if self
            .deaf_for
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
            .is_ok()
        {
            return Box::pin(async { Err(DedupStoreError::unavailable("a blip", None)) });
        }
        self.store.complete(key, token, retention)
    }

    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()> {
        self.store.release(key, token)
    }

    fn preflight(&self, retention: Duration) -> DedupFuture<'_, Vec<String>> {
        self.store.preflight(retention)
    }
}

async fn store_is_updated_after_a_short_outage(test: TestDb) {
    let (orders, message) = (Orders::default(), numbered(1, 1));
    let store = Deaf {
        store: MemoryDedupStore::new(),
        deaf_for: Arc::new(AtomicUsize::new(3)),
    };
    let harness = Harness::new(test.db.clone())
        .with_state(orders.clone())
        .with_dedup_store(store.clone())
        .with_config(slow());
    let outcome = harness.deliver_message::<lost_external>(&message).await.unwrap();
    assert_eq!(outcome, Outcome::Handled);
    assert!(
        store
            .store
            .is_done(&DedupKey::new("lost_external", message.event_id))
    );
    let outcome = harness
        .deliver_message::<lost_external>(&copy(&message))
        .await
        .unwrap();
    assert_eq!((outcome, orders.seen().runs_of(1)), (Outcome::Duplicate, 1));
}

async fn applied_dead_letter_ends_without_second_effect(test: TestDb) {
    prepare(&test).await;
    retry_all_letters::<lost_key>(&test).await;
    retry_all_letters::<lost_constraint>(&test).await;
    retry_all_letters::<lost_external>(&test).await;
    retry_all_letters::<lost_external_tx>(&test).await;
}

async fn retry_all_letters<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders, store) = (MemoryBroker::new(), Orders::default(), MemoryDedupStore::new());
    let message = numbered(1, 1);
    let inbox = |db| {
        Inbox::new(db, broker.subscriber())
            .with_router(Router::new().handler::<H>())
            .with_config(slow())
            .with_dedup_store(store.clone())
            .with_state(orders.clone())
    };
    orders.rule(1, Rule::Fatal);
    put(&broker, &message).await;
    let report = within(inbox(test.db.clone()).drain()).await.unwrap();
    assert_eq!(report.dead_letters, 1, "{consumer}: {report:?}");
    orders.rule(1, None);
    put(&broker, &copy(&message)).await;
    let report = within(inbox(test.db.clone()).drain()).await.unwrap();
    assert_eq!(report.handled, 1, "{consumer}: {report:?}");
    let effects = orders.seen().runs_of(1);

    let letters = DeadLetters::new(test.db.clone());
    let of_consumer = DeadLetterSelection::consumer(consumer);
    assert_eq!(letters.retry(&of_consumer).await.unwrap(), 1);
    let (shutdown, run): (CancellationToken, _) = spawn(inbox(test.db.clone()));
    eventually("an end of the letter", async || {
        letters.count(&of_consumer).await.unwrap() == 0
    })
    .await;
    let report = stop((shutdown, run)).await;
    assert_eq!(
        (report.duplicates, report.handled),
        (1, 0),
        "{consumer}: {report:?}"
    );
    let sql = format!("SELECT count(*) FROM inbox_messages WHERE consumer = '{consumer}' AND status <> 1");
    assert_eq!(test.int(&sql).await, 0, "{consumer}: its row is handled");
    match consumer {
        "lost_constraint" => assert_eq!(lines(test, consumer, 1).await, [1]),
        "lost_external" => assert_eq!(orders.seen().runs_of(1), effects),
        _ => assert_eq!(lines(test, consumer, 1).await, [1], "{consumer}"),
    }
}

on_every_backend!(
    applied_message_is_never_dead_lettered,
    failure_ends_when_a_copy_is_applied,
    waiting_for_a_turn_uses_no_attempts,
    unknown_version_applied_elsewhere_is_no_dead_letter,
    store_is_updated_after_a_short_outage,
    applied_dead_letter_ends_without_second_effect,
);
on_every_backend!(without memory: failure_ends_when_another_process_handles_the_message);
