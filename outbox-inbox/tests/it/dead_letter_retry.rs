//! Retried dead letters of a running inbox, and hooks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{EventId, Message};
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{
    DeadDelivery, DeadLetter, DeadLetterSelection, DeadLetterStatus, DeadLetters, Handler, Inbox, Router,
};
use outbox_testing::{MemoryBroker, MemoryDedupStore, MemorySubscriber, eventually};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, TransactionTrait as _};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, copy, crash_after, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn, stop, within};
use crate::support::{Backend, OrderPlaced, TestDb, slow};

fn number(event: &OrderPlaced) -> String {
    format!("{}/{}", event.order_id, event.line)
}

noting!(
    letter_by_message_id,
    consumer = "letters_message_id",
    strategy = message_id
);
noting!(
    letter_by_sequence,
    consumer = "letters_sequence",
    strategy = sequence
);
noting!(
    letter_by_key,
    consumer = "letters_key",
    strategy = key(self::number)
);
noting!(letter_naturally, consumer = "letters_natural", strategy = natural);
noting!(
    letter_by_external,
    consumer = "letters_external",
    strategy = external
);

fn inbox<H: Handler>(test: &TestDb, broker: &MemoryBroker, orders: &Orders) -> Inbox<MemorySubscriber> {
    test.inbox(broker, Router::new().handler::<H>())
        .with_config(slow())
        .with_dedup_store(MemoryDedupStore::new())
        .with_state(orders.clone())
}

async fn make_dead_letters<H: Handler>(
    test: &TestDb,
    broker: &MemoryBroker,
    orders: &Orders,
    last: u32,
) -> Vec<Message> {
    let messages: Vec<_> = (1..=last).map(|line| numbered(1, line)).collect();
    for message in &messages {
        put(broker, message).await;
    }
    orders.rule(1, Rule::Fatal);
    let report = within(inbox::<H>(test, broker, orders).drain()).await.unwrap();
    assert_eq!(report.dead_letters, u64::from(last), "{report:?}");
    orders.rule(1, None);
    messages
}

async fn count(test: &TestDb, selection: &DeadLetterSelection) -> u64 {
    DeadLetters::new(test.db.clone()).count(selection).await.unwrap()
}

async fn no_letters(test: &TestDb, consumer: &str) {
    eventually("an end of the letters", async || {
        count(test, &DeadLetterSelection::consumer(consumer)).await == 0
    })
    .await;
}

async fn retry(test: &TestDb, consumer: &str) -> u64 {
    let letters = DeadLetters::new(test.db.clone());
    letters
        .retry(&DeadLetterSelection::consumer(consumer))
        .await
        .unwrap()
}

async fn letters_of_an_aggregate_run_in_order_until_a_failure(test: TestDb) {
    prepare(&test).await;
    in_order::<letter_by_message_id>(&test).await;
    in_order::<letter_by_sequence>(&test).await;
}

async fn in_order<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    make_dead_letters::<H>(test, &broker, &orders, 5).await;
    orders.line_rule((1, 3), Rule::Fail);
    let before = orders.seen().runs.len();
    assert_eq!(retry(test, consumer).await, 5);
    let (shutdown, run) = spawn(inbox::<H>(test, &broker, &orders));
    eventually("an end of the marks", async || {
        let marked = DeadLetterSelection::consumer(consumer).status(DeadLetterStatus::Retry);
        count(test, &marked).await == 0 && count(test, &DeadLetterSelection::consumer(consumer)).await == 3
    })
    .await;
    let letters = async || {
        let mut letters = dead_letters(&test.db, consumer).await.unwrap();
        letters.sort_by_key(|letter| letter.stream_sequence);
        letters
    };
    eventually("the new error", async || {
        letters().await[0].error == "out of stock"
    })
    .await;
    let attempts: Vec<_> = letters()
        .await
        .iter()
        .map(|letter: &DeadLetter| (letter.sequence, letter.attempts, letter.error.clone()))
        .collect();
    let old = "unknown product".to_owned();
    assert_eq!(
        attempts,
        [
            (Some(3), 2, "out of stock".to_owned()),
            (Some(4), 1, old.clone()),
            (Some(5), 1, old)
        ],
        "{consumer}"
    );
    assert_eq!(
        orders.seen().runs[before..],
        [(1, 1), (1, 2), (1, 3)],
        "{consumer}"
    );
    assert_eq!(lines(test, consumer, 1).await, [1, 2]);
    orders.line_rule((1, 3), None);
    assert_eq!(retry(test, consumer).await, 3);
    no_letters(test, consumer).await;
    assert_eq!(lines(test, consumer, 1).await, [1, 2, 3, 4, 5]);
    let report = stop((shutdown, run)).await;
    assert_eq!((report.handled, report.dead_letters), (5, 1), "{report:?}");
}

async fn dead_letter_that_kills_the_process_stays_open(test: TestDb) {
    prepare(&test).await;
    let consumer = "letters_message_id";
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    make_dead_letters::<letter_by_message_id>(&test, &broker, &orders, 2).await;
    assert_eq!(retry(&test, consumer).await, 2);
    orders.rule(1, Rule::Wait);
    let runs = orders.seen().runs.len();
    let (connect, broker_there, orders_there) = (test.connector(), broker.clone(), orders.clone());
    crash_after(move || async move {
        let inbox = Inbox::new(connect().await, broker_there.subscriber())
            .with_router(Router::new().handler::<letter_by_message_id>())
            .with_config(slow())
            .with_state(orders_there.clone());
        let run = tokio::spawn(async move { inbox.run(CancellationToken::new()).await });
        orders_there
            .until("the retry", |state| state.runs.len() > runs)
            .await;
        std::mem::forget(run);
    })
    .await;
    orders.rule(1, None);
    assert!(lines(&test, consumer, 1).await.is_empty());
    let mut letters = dead_letters(&test.db, consumer).await.unwrap();
    letters.sort_by_key(|letter| letter.stream_sequence);
    let state: Vec<_> = letters
        .iter()
        .map(|letter| (letter.status, letter.attempts))
        .collect();
    assert_eq!(state, [(DeadLetterStatus::Open, 2), (DeadLetterStatus::Retry, 1)]);
    let (shutdown, run) = spawn(inbox::<letter_by_message_id>(&test, &broker, &orders));
    eventually("the second letter", async || {
        lines(&test, consumer, 1).await == [2]
    })
    .await;
    assert_eq!(count(&test, &DeadLetterSelection::all()).await, 1);
    assert_eq!(stop((shutdown, run)).await.handled, 1);
}

async fn every_strategy_retries_dead_letters(test: TestDb) {
    prepare(&test).await;
    again::<letter_by_message_id>(&test).await;
    again::<letter_by_sequence>(&test).await;
    again::<letter_by_key>(&test).await;
    again::<letter_naturally>(&test).await;
    again::<letter_by_external>(&test).await;
}

async fn again<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    let messages = make_dead_letters::<H>(test, &broker, &orders, 2).await;
    put(&broker, &numbered(1, 3)).await;
    let report = within(inbox::<H>(test, &broker, &orders).drain()).await.unwrap();
    assert_eq!(report.handled, 1, "{consumer}");
    assert_eq!(retry(test, consumer).await, 2);
    let (shutdown, run) = spawn(inbox::<H>(test, &broker, &orders));
    no_letters(test, consumer).await;
    assert_eq!(lines(test, consumer, 1).await, [3, 1, 2], "{consumer}");
    let remembers = consumer != "letters_natural";
    for message in messages.iter().filter(|_| remembers) {
        put(&broker, &copy(message)).await;
    }
    let report = finish(&broker, consumer, (shutdown, run)).await;
    assert_eq!(
        (report.handled, report.duplicates, report.dead_letters),
        (2, if remembers { 2 } else { 0 }, 0),
        "{consumer}: {report:?}"
    );
    assert_eq!(lines(test, consumer, 1).await, [3, 1, 2], "{consumer}");
}

#[tokio::test]
async fn drain_polls_for_retries_before_its_end() {
    let Some(test) = TestDb::open(Backend::Postgres, "slow_look").await else {
        return;
    };
    prepare(&test).await;
    let consumer = "letters_message_id";
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    make_dead_letters::<letter_by_message_id>(&test, &broker, &orders, 1).await;
    assert_eq!(retry(&test, consumer).await, 1);
    let slow_database = test.connect_again().await.begin().await.unwrap();
    let lock = "LOCK TABLE inbox_dead_letters IN ACCESS EXCLUSIVE MODE";
    slow_database.execute_unprepared(lock).await.unwrap();
    let inbox = inbox::<letter_by_message_id>(&test, &broker, &orders);
    let drain = tokio::spawn(async move { inbox.drain().await });
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE relation = 'inbox_dead_letters'::regclass AND NOT granted";
    eventually("the poll for retries", async || test.int(waiting).await > 0).await;
    sleep(Duration::from_millis(500)).await;
    assert!(!drain.is_finished(), "the drain ended before the answer");
    slow_database.commit().await.unwrap();
    assert_eq!(within(drain).await.unwrap().unwrap().handled, 1);
    assert_eq!(lines(&test, consumer, 1).await, [1]);
}

type Told = Arc<Mutex<Vec<(Option<EventId>, u32, String, bool)>>>;

fn look_up(told: Told, db: DatabaseConnection) -> impl Fn(DeadDelivery<'_>) + Send + Sync + 'static {
    move |dead| {
        let letters = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(dead_letters(&db, dead.consumer))
        });
        let event_id = dead.message.map(|message| message.event_id);
        let (attempts, error) = (dead.attempts, dead.error.to_owned());
        let is_stored = letters.unwrap().iter().any(|letter| {
            letter.event_id == event_id && letter.attempts == attempts && letter.error == error
        });
        told.lock().unwrap().push((event_id, attempts, error, is_stored));
    }
}

async fn hooks_run_once_after_the_commit(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    let told = Told::default();
    let message = numbered(1, 1);
    put(&broker, &message).await;
    put(&broker, &copy(&message)).await;
    orders.rule(1, Rule::Fatal);
    let inbox = inbox::<letter_by_message_id>(&test, &broker, &orders)
        .with_config(slow().concurrency(1))
        .on_dead_letter(look_up(told.clone(), test.connect_again().await));
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.dead_letters, report.duplicates), (1, 1), "{report:?}");
    orders.rule(1, Rule::Fail);
    assert_eq!(retry(&test, "letters_message_id").await, 1);
    let (shutdown, run) = spawn(inbox);
    eventually("another call", async || told.lock().unwrap().len() == 2).await;
    stop((shutdown, run)).await;
    let id = Some(message.event_id);
    assert_eq!(
        *told.lock().unwrap(),
        [
            (id, 1, "unknown product".to_owned(), true),
            (id, 2, "out of stock".to_owned(), true)
        ]
    );
}

on_every_backend!(
    letters_of_an_aggregate_run_in_order_until_a_failure,
    every_strategy_retries_dead_letters,
);
on_every_backend!(without memory:
    dead_letter_that_kills_the_process_stays_open,
    hooks_run_once_after_the_commit,
);
