//! Dead letters of a recreated stream are retried after the dead letters of the old stream.

use std::time::Duration;

use outbox_core::Aggregate;
use outbox_inbox::{DeadLetterSelection, DeadLetters, Inbox, Router};
use outbox_testing::{MemoryBroker, MemorySubscriber, eventually};
use tokio::time::sleep;

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, lines, numbered, prepare, put};
use crate::runtime::{spawn, stop, within};
use crate::support::{TestDb, slow};

const CONSUMER: &str = "made_anew";
const A_POLL: Duration = Duration::from_secs(7);

noting!(note, consumer = "made_anew");

fn inbox(test: &TestDb, broker: &MemoryBroker, orders: &Orders) -> Inbox<MemorySubscriber> {
    test.inbox(broker, Router::new().handler::<note>())
        .with_config(slow())
        .with_state(orders.clone())
}

/// Line 1 is late in the old stream, and line 2 is early in the new stream. The handler applies
/// `rule` to line 1 while a poll finds line 2.
async fn letter_of_old_stream_is_first(test: &TestDb, rule: Rule) {
    prepare(test).await;
    let orders = Orders::default();
    let (old, new) = (MemoryBroker::new(), MemoryBroker::new());
    for line in 1..=5 {
        put(&old, &numbered(2, line)).await;
    }
    put(&old, &numbered(1, 1)).await;
    put(&new, &numbered(1, 2)).await;
    orders.rule(1, Rule::Fatal);
    for broker in [&old, &new] {
        let report = within(inbox(test, broker, &orders).drain()).await.unwrap();
        assert_eq!(report.dead_letters, 1, "{report:?}");
    }
    orders.rule(1, None);
    orders.line_rule((1, 1), rule);
    let before = orders.seen().runs_of(1);
    let (letters, all) = (
        DeadLetters::new(test.db.clone()),
        DeadLetterSelection::consumer(CONSUMER),
    );
    assert_eq!(letters.retry(&all).await.unwrap(), 2);
    let (shutdown, run) = spawn(inbox(test, &new, &orders));
    orders
        .until("the first try", |seen| seen.runs_of(1) > before)
        .await;
    sleep(A_POLL).await;
    orders.line_rule((1, 1), None);
    eventually("the end of the letters", async || {
        letters.count(&all).await.unwrap() == 0
    })
    .await;
    assert_eq!(stop((shutdown, run)).await.dead_letters, 0);
    assert_eq!(lines(test, CONSUMER, 1).await, [1, 2]);
}

async fn deferred_letter_of_old_stream_is_not_overtaken(test: TestDb) {
    letter_of_old_stream_is_first(&test, Rule::NotYet(Duration::from_millis(50))).await;
}

async fn running_letter_of_old_stream_is_not_overtaken(test: TestDb) {
    letter_of_old_stream_is_first(&test, Rule::Lose).await;
}

async fn deferred_letter_of_old_stream_hides_no_others(test: TestDb) {
    prepare(&test).await;
    let orders = Orders::default();
    let (old, new) = (MemoryBroker::new(), MemoryBroker::new());
    for line in 1..=110 {
        put(&old, &numbered(2, line)).await;
    }
    put(&old, &numbered(1, 1)).await;
    for line in 2..=102 {
        put(&new, &numbered(1, line)).await;
    }
    put(&new, &numbered(3, 1)).await;
    orders.rule_all([1, 3], Rule::Fatal);
    for (broker, dead_letters) in [(&old, 1), (&new, 102)] {
        let report = within(inbox(&test, broker, &orders).drain()).await.unwrap();
        assert_eq!(report.dead_letters, dead_letters, "{report:?}");
    }
    orders.rule(1, Rule::NotYet(Duration::from_secs(3600)));
    orders.rule(3, None);
    let before = orders.seen().runs_of(1);
    let letters = DeadLetters::new(test.db.clone());
    let of =
        |order_id: &str| DeadLetterSelection::consumer(CONSUMER).aggregate(Aggregate::new("order", order_id));
    assert_eq!(letters.retry(&of("1")).await.unwrap(), 102);
    let (shutdown, run) = spawn(inbox(&test, &new, &orders));
    orders
        .until("the first try", |seen| seen.runs_of(1) > before)
        .await;
    assert_eq!(letters.retry(&of("3")).await.unwrap(), 1);
    eventually("the letter of the other aggregate", async || {
        lines(&test, CONSUMER, 3).await == [1]
    })
    .await;
    assert_eq!(orders.seen().runs_of(1), before + 1);
    stop((shutdown, run)).await;
}

on_every_backend!(
    deferred_letter_of_old_stream_is_not_overtaken,
    deferred_letter_of_old_stream_hides_no_others,
);
// A waiting run keeps the only connection to an in-memory database.
on_every_backend!(without memory: running_letter_of_old_stream_is_not_overtaken);
