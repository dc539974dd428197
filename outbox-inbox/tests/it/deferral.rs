//! Handlers that return *not yet*: rolled back, and run again after the requested time.

use std::time::Duration;

use outbox_inbox::testing::{Harness, Outcome, dead_letters};
use outbox_inbox::{
    DeadLetterSelection, DeadLetters, Event, Handler, HandlerError, HandlerState, Inbox, Router, Tx,
    idempotent_handler,
};
use outbox_testing::{MemoryBroker, MemoryDedupStore, MemorySubscriber, eventually};

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn, stop, within};
use crate::support::{Backend, OrderPlaced, TestDb, quick, slow};

const MOMENT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(3600);

fn number(event: &OrderPlaced) -> String {
    format!("{}/{}", event.order_id, event.line)
}

noting!(
    wait_by_message_id,
    consumer = "wait_message_id",
    strategy = message_id
);
noting!(wait_by_sequence, consumer = "wait_sequence", strategy = sequence);
noting!(wait_by_key, consumer = "wait_key", strategy = key(self::number));
noting!(wait_naturally, consumer = "wait_natural", strategy = natural);
noting!(
    wait_by_constraint,
    consumer = "wait_constraint",
    strategy = constraint("noted_unique")
);
noting!(wait_by_external, consumer = "wait_external", strategy = external);
noting!(wait_unordered, consumer = "wait_unordered", order = none);
noting!(wait_strictly, consumer = "wait_strict", order = strict);
noting!(wait_in_batch, consumer = "wait_batch", batch = 10);
noting!(
    wait_in_sequenced_batch,
    consumer = "wait_sequenced_batch",
    strategy = sequence,
    batch = 10
);

#[idempotent_handler(consumer = "wait_several", batch = 10)]
async fn wait_with_several(
    events: Vec<Event<OrderPlaced>>,
    tx: Tx<'_>,
    orders: HandlerState<Orders>,
) -> Result<(), HandlerError> {
    orders.called_with(events.len());
    for event in &events {
        orders.note("wait_several", event, &tx).await?;
    }
    Ok(())
}

fn inbox<H: Handler>(test: &TestDb, broker: &MemoryBroker, orders: &Orders) -> Inbox<MemorySubscriber> {
    test.inbox(broker, Router::new().handler::<H>())
        .with_config(slow().attempts_max(2))
        .with_dedup_store(MemoryDedupStore::new())
        .with_state(orders.clone())
}

async fn deferred_run_repeats_until_success<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.line_rule((1, 1), Rule::NotYet(MOMENT));
    for (order_id, line) in [(1, 1), (1, 2), (2, 1)] {
        put(&broker, &numbered(order_id, line)).await;
    }
    let (shutdown, run) = spawn(inbox::<H>(test, &broker, &orders));
    orders
        .until("more runs than attempts", |seen| {
            seen.runs.iter().filter(|run| **run == (1, 1)).count() >= 5
        })
        .await;
    orders.line_rule((1, 1), None);
    let report = finish(&broker, consumer, (shutdown, run)).await;
    assert_eq!(
        (report.handled, report.failed, report.dead_letters),
        (3, 0, 0),
        "{consumer}: {report:?}"
    );
    assert!(report.deferred >= 4, "{consumer}: {report:?}");
    let mut of_first = lines(test, consumer, 1).await;
    if consumer == "wait_unordered" {
        of_first.sort_unstable();
    }
    assert_eq!(of_first, [1, 2], "{consumer}");
    assert_eq!(lines(test, consumer, 2).await, [1], "{consumer}");
    let counted =
        format!("SELECT count(*) FROM inbox_messages WHERE consumer = '{consumer}' AND attempts > 1");
    assert_eq!(test.int(&counted).await, 0, "{consumer}");
}

async fn deferred_run_is_repeated_and_uses_no_attempt(test: TestDb) {
    prepare(&test).await;
    deferred_run_repeats_until_success::<wait_by_message_id>(&test).await;
    deferred_run_repeats_until_success::<wait_by_sequence>(&test).await;
    deferred_run_repeats_until_success::<wait_by_key>(&test).await;
    deferred_run_repeats_until_success::<wait_naturally>(&test).await;
    deferred_run_repeats_until_success::<wait_by_constraint>(&test).await;
    deferred_run_repeats_until_success::<wait_by_external>(&test).await;
    deferred_run_repeats_until_success::<wait_unordered>(&test).await;
    deferred_run_repeats_until_success::<wait_strictly>(&test).await;
}

async fn deferral_blocks_its_aggregate_and_survives_a_restart(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(1, Rule::NotYet(LONG));
    for line in 1..=2 {
        for order_id in 1..=3 {
            put(&broker, &numbered(order_id, line)).await;
        }
    }
    let (shutdown, run) = spawn(inbox::<wait_by_message_id>(&test, &broker, &orders));
    eventually("the others", async || {
        let mut all = orders.seen().runs_of(1) > 0;
        for order_id in 2..=3 {
            all &= lines(&test, "wait_message_id", order_id).await == [1, 2];
        }
        all
    })
    .await;
    let report = stop((shutdown, run)).await;
    assert_eq!((report.handled, report.deferred), (4, 1), "{report:?}");
    assert_eq!(orders.seen().runs_of(1), 1);
    assert!(lines(&test, "wait_message_id", 1).await.is_empty());
    orders.rule(1, None);
    let report = within(inbox::<wait_by_message_id>(&test, &broker, &orders).drain()).await;
    assert_eq!(report.unwrap().handled, 2);
    assert_eq!(lines(&test, "wait_message_id", 1).await, [1, 2]);
}

async fn one_of_a_batch_waits<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(3, Rule::NotYet(LONG));
    for order_id in 0..10 {
        put(&broker, &numbered(order_id, 1)).await;
    }
    let inbox = inbox::<H>(test, &broker, &orders).with_config(slow().concurrency(1));
    let (shutdown, run) = spawn(inbox);
    eventually("the others", async || {
        let effects = format!("SELECT count(*) FROM noted WHERE consumer = '{consumer}'");
        test.int(&effects).await == 9
    })
    .await;
    let report = stop((shutdown, run)).await;
    assert_eq!(
        (report.handled, report.deferred),
        (9, 1),
        "{consumer}: {report:?}"
    );
    assert_eq!(orders.seen().runs_of(3), 1, "{consumer}");
    assert!(lines(test, consumer, 3).await.is_empty(), "{consumer}");
}

async fn in_a_batch_only_the_deferred_message_waits(test: TestDb) {
    prepare(&test).await;
    one_of_a_batch_waits::<wait_in_batch>(&test).await;
    one_of_a_batch_waits::<wait_in_sequenced_batch>(&test).await;
}

async fn deferred_vec_handler_is_not_called_for_each_message(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(3, Rule::NotYet(MOMENT));
    for order_id in 0..10 {
        put(&broker, &numbered(order_id, 1)).await;
    }
    let inbox = inbox::<wait_with_several>(&test, &broker, &orders).with_config(slow().concurrency(1));
    let (shutdown, run) = spawn(inbox);
    orders.until("the first call", |seen| seen.runs_of(3) > 0).await;
    orders.rule(3, None);
    let report = finish(&broker, "wait_several", (shutdown, run)).await;
    assert_eq!((report.handled, report.failed), (10, 0), "{report:?}");
    assert!(report.deferred >= 10, "{report:?}");
    let calls = orders.seen().batches;
    assert_eq!(calls[0], 10, "{calls:?}");
    assert!(calls.iter().skip(1).all(|messages| *messages == 1), "{calls:?}");
    for order_id in 0..10 {
        assert_eq!(lines(&test, "wait_several", order_id).await, [1]);
    }
}

async fn others_pass_a_waiting_letter<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(1, Rule::Fatal);
    for line in 1..=2 {
        put(&broker, &numbered(1, line)).await;
    }
    let report = within(inbox::<H>(test, &broker, &orders).drain()).await;
    assert_eq!(report.unwrap().dead_letters, 2);
    let (letters, all) = (
        DeadLetters::new(test.db.clone()),
        DeadLetterSelection::consumer(consumer),
    );
    orders.rule(1, None);
    orders.line_rule((1, 1), Rule::NotYet(2 * MOMENT));
    assert_eq!(letters.retry(&all).await.unwrap(), 2);
    let (shutdown, run) = spawn(inbox::<H>(test, &broker, &orders));
    orders.until("a try", |seen| seen.runs_of(1) > 2).await;
    orders.line_rule((1, 1), Rule::NotYet(LONG));
    eventually("the next try", async || {
        let before = orders.seen().runs_of(1);
        tokio::time::sleep(10 * MOMENT).await;
        orders.seen().runs_of(1) == before
    })
    .await;
    put(&broker, &numbered(1, 3)).await;
    put(&broker, &numbered(2, 1)).await;
    within(broker.until_idle(consumer)).await;
    assert_eq!(lines(test, consumer, 1).await, [3], "{consumer}");
    assert_eq!(lines(test, consumer, 2).await, [1], "{consumer}");
    stop((shutdown, run)).await;
    orders.line_rule((1, 1), None);
    let (shutdown, run) = spawn(inbox::<H>(test, &broker, &orders));
    eventually("the end of the letters", async || {
        letters.count(&all).await.unwrap() == 0
    })
    .await;
    stop((shutdown, run)).await;
    assert_eq!(lines(test, consumer, 1).await, [3, 1, 2], "{consumer}");
}

async fn deferred_dead_letter_blocks_later_letters_only(test: TestDb) {
    prepare(&test).await;
    others_pass_a_waiting_letter::<wait_by_message_id>(&test).await;
    others_pass_a_waiting_letter::<wait_strictly>(&test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_attempt_is_uncounted_after_an_outage() {
    let test = TestDb::open(Backend::SqliteMemory, "not_taken_back")
        .await
        .unwrap();
    prepare(&test).await;
    let orders = Orders::default();
    orders.rule(1, Rule::NotYet(LONG));
    test.execute(
        "CREATE TRIGGER keep BEFORE UPDATE ON inbox_messages WHEN NEW.attempts < OLD.attempts BEGIN SELECT RAISE(ABORT, 'not now'); END",
    )
    .await;
    let harness = Harness::new(test.db.clone())
        .with_config(quick())
        .with_state(orders.clone());
    let message = numbered(1, 1);
    let delivery =
        tokio::spawn(async move { harness.redeliver_message::<wait_by_message_id>(&message, 2).await });
    orders.until("the run", |seen| seen.runs_of(1) == 1).await;
    tokio::time::sleep(MOMENT).await;
    test.execute("DROP TRIGGER keep").await;
    let outcome = within(delivery).await.unwrap().unwrap();
    assert_eq!(outcome, Outcome::Deferred(LONG));
    assert_eq!(test.row().await.map(|(_, attempts)| attempts), Some(0));
}

async fn harness_reports_the_requested_wait(test: TestDb) {
    prepare(&test).await;
    let orders = Orders::default();
    orders.rule(1, Rule::NotYet(2 * LONG));
    let harness = Harness::new(test.db.clone())
        .with_config(quick().attempts_max(1))
        .with_state(orders.clone());
    let message = numbered(1, 1);
    for delivery in 1..=3 {
        let outcome = harness
            .redeliver_message::<wait_by_sequence>(&message, delivery)
            .await;
        assert_eq!(outcome.unwrap(), Outcome::Deferred(HandlerError::RETRY_AFTER_MAX));
    }
    assert_eq!(test.int("SELECT failing FROM inbox_sequences").await, 1);
    orders.rule(1, None);
    let outcome = harness.redeliver_message::<wait_by_sequence>(&message, 4).await;
    assert_eq!(outcome.unwrap(), Outcome::Handled);
    assert_eq!(lines(&test, "wait_sequence", 1).await, [1]);
    assert!(dead_letters(&test.db, "wait_sequence").await.unwrap().is_empty());
}

on_every_backend!(
    deferred_run_is_repeated_and_uses_no_attempt,
    deferral_blocks_its_aggregate_and_survives_a_restart,
    in_a_batch_only_the_deferred_message_waits,
    deferred_vec_handler_is_not_called_for_each_message,
    deferred_dead_letter_blocks_later_letters_only,
    harness_reports_the_requested_wait,
);
