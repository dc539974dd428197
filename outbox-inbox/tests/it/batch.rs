//! Batches: one transaction for all messages, or one for each message.

use outbox_core::codec;
use outbox_inbox::{
    Event, Handler, HandlerError, HandlerState, Inbox, InboxConfig, InboxReport, Router, Tx,
    idempotent_handler,
};
use outbox_testing::MemoryBroker;
use tokio_util::sync::CancellationToken;

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, copy, crash_after, lines, numbered, prepare, put};
use crate::runtime::{finish, kill_other_sessions, spawn, stop, within};
use crate::support::{Backend, OrderPlaced, TestDb, only_letter, slow, with_ack_wait};

#[idempotent_handler(consumer = "several", batch = 10)]
async fn note_several(
    events: Vec<Event<OrderPlaced>>,
    tx: Tx<'_>,
    orders: HandlerState<Orders>,
) -> Result<(), HandlerError> {
    orders.called_with(events.len());
    for event in &events {
        orders.note("several", event, &tx).await?;
    }
    Ok(())
}

noting!(note_single, consumer = "single", batch = 10);

fn number(event: &OrderPlaced) -> String {
    format!("{}/{}", event.order_id, event.line)
}

noting!(
    note_keyed,
    consumer = "keyed",
    strategy = key(self::number),
    batch = 10
);

noting!(
    note_sequenced,
    consumer = "sequenced",
    strategy = sequence,
    batch = 10
);

noting!(
    note_naturally,
    consumer = "natural_batches",
    strategy = natural,
    batch = 10
);

fn one_by_one() -> InboxConfig {
    slow().concurrency(1).attempts_max(3)
}

fn inbox<H: Handler>(
    test: &TestDb,
    broker: &MemoryBroker,
    orders: &Orders,
) -> Inbox<outbox_testing::MemorySubscriber> {
    test.inbox(broker, Router::new().handler::<H>())
        .with_config(one_by_one())
        .with_state(orders.clone())
}

async fn drain<H: Handler>(test: &TestDb, broker: &MemoryBroker, orders: &Orders) -> InboxReport {
    within(inbox::<H>(test, broker, orders).drain()).await.unwrap()
}

async fn publish(broker: &MemoryBroker, orders: u64, lines: u32) {
    for line in 1..=lines {
        for order_id in 0..orders {
            put(broker, &numbered(order_id, line)).await;
        }
    }
}

async fn assert_each_once(test: &TestDb, consumer: &str, orders: u64, last: i64) {
    let all: Vec<i64> = (1..=last).collect();
    for order_id in 0..orders {
        assert_eq!(lines(test, consumer, order_id).await, all, "order {order_id}");
    }
}

async fn share_a_transaction<H: Handler>(test: &TestDb) {
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    publish(&broker, 8, 5).await;
    let report = drain::<H>(test, &broker, &orders).await;
    assert_eq!((report.handled, report.received), (40, 40), "{report:?}");
    assert_each_once(test, H::REGISTRATION.consumer, 8, 5).await;
    assert_eq!(orders.seen().runs.len(), 40);
    if test.backend == Backend::Postgres {
        let transactions = "SELECT count(*) FROM (SELECT DISTINCT tx FROM noted) AS transactions";
        assert_eq!(test.int(transactions).await, 4);
    }
}

async fn vec_handler_gets_full_batches(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    publish(&broker, 5, 5).await;
    let report = drain::<note_several>(&test, &broker, &orders).await;
    assert_eq!(report.handled, 25);
    assert_eq!(orders.seen().batches, [10, 10, 5]);
    assert_each_once(&test, "several", 5, 5).await;
    assert_eq!(test.int("SELECT count(*) FROM inbox_messages").await, 25);
}

async fn many_messages_share_a_transaction(test: TestDb) {
    prepare(&test).await;
    share_a_transaction::<note_several>(&test).await;
    for consumer in ["single", "keyed", "sequenced", "natural_batches"] {
        test.execute("DELETE FROM noted").await;
        match consumer {
            "single" => share_a_transaction::<note_single>(&test).await,
            "keyed" => share_a_transaction::<note_keyed>(&test).await,
            "sequenced" => share_a_transaction::<note_sequenced>(&test).await,
            _ => share_a_transaction::<note_naturally>(&test).await,
        }
    }
}

async fn a_copy_within_a_batch_takes_effect_once(test: TestDb) {
    prepare(&test).await;
    copies::<note_several>(&test).await;
    copies::<note_single>(&test).await;
    copies::<note_keyed>(&test).await;
    copies::<note_sequenced>(&test).await;
}

async fn copies<H: Handler>(test: &TestDb) {
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    let messages: Vec<_> = (0..8).map(|order_id| numbered(order_id, 1)).collect();
    for message in &messages {
        put(&broker, message).await;
        put(&broker, &copy(message)).await;
    }
    put(&broker, &copy(&messages[0])).await;
    let report = drain::<H>(test, &broker, &orders).await;
    assert_eq!(
        (report.handled, report.duplicates, report.failed),
        (8, 9, 0),
        "{report:?}"
    );
    assert_each_once(test, H::REGISTRATION.consumer, 8, 1).await;
    assert_eq!(orders.seen().runs.len(), 8, "{}", H::REGISTRATION.consumer);
}

async fn failing_message_does_not_fail_its_batch(test: TestDb) {
    prepare(&test).await;
    with_poison::<note_several>(&test).await;
    with_poison::<note_single>(&test).await;
    with_poison::<note_keyed>(&test).await;
    with_poison::<note_sequenced>(&test).await;
    with_poison::<note_naturally>(&test).await;
}

async fn with_poison<H: Handler>(test: &TestDb) {
    const POISON: u64 = 3;
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(POISON, Rule::Fail);
    publish(&broker, 10, 1).await;
    let report = drain::<H>(test, &broker, &orders).await;
    assert_eq!(
        (report.handled, report.failed, report.dead_letters),
        (9, 2, 1),
        "{consumer}: {report:?}"
    );
    let letter = only_letter(test, consumer).await;
    assert_eq!(letter.attempts, 3, "{consumer}");
    let seen = orders.seen();
    for order_id in 0..10 {
        let poison = order_id == POISON;
        assert_eq!(lines(test, consumer, order_id).await.len(), usize::from(!poison));
        let together = usize::from(order_id <= POISON);
        let alone = if poison { 3 } else { 1 };
        assert_eq!(
            seen.runs_of(order_id),
            together + alone,
            "{consumer}: order {order_id}"
        );
    }
}

async fn undecodable_payload_does_not_fail_its_batch(test: TestDb) {
    prepare(&test).await;
    with_garbage::<note_several>(&test).await;
    with_garbage::<note_single>(&test).await;
    with_garbage::<note_keyed>(&test).await;
    with_garbage::<note_sequenced>(&test).await;
}

async fn with_garbage<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    publish(&broker, 4, 1).await;
    let mut garbage = codec::encode(&numbered(4, 1), "shop");
    garbage.payload = "no JSON".into();
    let (headers, payload) = garbage.received();
    broker.inject("events.order.4.placed", headers, payload);
    // If the unreadable message belonged to order 1, message 5 would wait for the missing sequence.
    put(&broker, &numbered(5, 1)).await;
    let report = drain::<H>(test, &broker, &orders).await;
    assert_eq!(
        (report.handled, report.failed, report.dead_letters),
        (5, 0, 1),
        "{consumer}: {report:?}"
    );
    let letter = only_letter(test, consumer).await;
    assert_eq!(letter.raw_payload(), b"no JSON");
    assert!(letter.error.contains("cannot be decoded"), "{}", letter.error);
    assert_each_once(test, consumer, 4, 1).await;
    assert_eq!(lines(test, consumer, 5).await, [1]);
}

async fn copies_in_two_processes_take_effect_once(test: TestDb) {
    prepare(&test).await;
    in_two_processes::<note_several>(&test).await;
    in_two_processes::<note_keyed>(&test).await;
    in_two_processes::<note_sequenced>(&test).await;
}

async fn in_two_processes<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    let messages: Vec<_> = (1..=5)
        .flat_map(|line| (0..20).map(move |order_id| numbered(order_id, line)))
        .collect();
    for message in &messages {
        put(&broker, message).await;
    }
    for message in messages.chunks(20).flat_map(|line| line.iter().rev()) {
        put(&broker, &copy(message)).await;
    }
    let config = slow().concurrency(4).in_flight_max(20);
    let running: Vec<_> = [test.db.clone(), test.connect_again().await]
        .into_iter()
        .map(|db| {
            let inbox = Inbox::new(db, broker.subscriber())
                .with_router(Router::new().handler::<H>())
                .with_config(config.clone())
                .with_state(orders.clone());
            spawn(inbox)
        })
        .collect();
    within(broker.until_idle(consumer)).await;
    let mut handled = 0;
    for (shutdown, run) in running {
        let report = stop((shutdown, run)).await;
        assert_eq!(
            (report.failed, report.dead_letters),
            (0, 0),
            "{consumer}: {report:?}"
        );
        handled += report.handled;
    }
    assert_eq!(handled, 100, "{consumer}");
    for order_id in 0..20 {
        let mut lines = lines(test, consumer, order_id).await;
        if consumer != "sequenced" {
            lines.sort_unstable();
        }
        assert_eq!(lines, [1, 2, 3, 4, 5], "{consumer}: order {order_id}");
    }
}

async fn a_lost_session_uses_no_attempts(test: TestDb) {
    prepare(&test).await;
    lose_session::<note_several>(&test).await;
    lose_session::<note_single>(&test).await;
}

async fn lose_session<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(5, Rule::Wait);
    publish(&broker, 10, 1).await;
    let inbox = Inbox::new(test.connect_again().await, broker.subscriber())
        .with_router(Router::new().handler::<H>())
        .with_config(one_by_one().attempts_max(1))
        .with_state(orders.clone());
    let (shutdown, run) = spawn(inbox);
    orders.until("order 5 runs", |state| state.runs_of(5) == 1).await;
    kill_other_sessions(test).await;
    orders.rule(5, None);
    let report = finish(&broker, consumer, (shutdown, run)).await;
    assert_eq!(
        (report.handled, report.failed, report.dead_letters),
        (10, 0, 0),
        "{consumer}: {report:?}"
    );
    assert_each_once(test, consumer, 10, 1).await;
}

async fn a_crash_in_a_batch_leaves_nothing(test: TestDb) {
    prepare(&test).await;
    crash_in::<note_several>(&test).await;
    crash_in::<note_single>(&test).await;
}

async fn crash_in<H: Handler>(test: &TestDb) {
    let consumer = H::REGISTRATION.consumer;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(5, Rule::Wait);
    publish(&broker, 10, 1).await;
    let (connect, broker_there, orders_there) = (test.connector(), broker.clone(), orders.clone());
    crash_after(move || async move {
        let inbox = Inbox::new(connect().await, broker_there.subscriber())
            .with_router(Router::new().handler::<H>())
            .with_config(with_ack_wait(2).concurrency(1))
            .with_state(orders_there.clone());
        let run = tokio::spawn(async move { inbox.run(CancellationToken::new()).await });
        orders_there
            .until("order 5 runs", |state| state.runs_of(5) > 0)
            .await;
        std::mem::forget(run);
    })
    .await;
    let rows = format!("SELECT count(*) FROM inbox_messages WHERE consumer = '{consumer}'");
    assert_eq!(test.int(&rows).await, 0);
    for order_id in 0..10 {
        assert!(lines(test, consumer, order_id).await.is_empty());
    }
    orders.rule(5, None);
    let report = drain::<H>(test, &broker, &orders).await;
    assert_eq!((report.handled, report.duplicates), (10, 0), "{report:?}");
    assert_each_once(test, consumer, 10, 1).await;
}

async fn stop_ends_a_failed_batch(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(1, Rule::Wait);
    orders.rule(2, Rule::Fail);
    publish(&broker, 4, 1).await;
    let (shutdown, run) = spawn(inbox::<note_single>(&test, &broker, &orders));
    orders.until("the batch", |state| state.runs.len() == 2).await;
    orders.rule(0, Rule::Wait);
    orders.rule(1, None);
    orders
        .until("the first alone", |state| state.runs.len() == 4)
        .await;
    shutdown.cancel();
    orders.rule(0, None);
    let report = within(run).await.unwrap();
    assert_eq!((report.handled, report.returned), (1, 3), "{report:?}");
    let runs: Vec<u64> = orders.seen().runs.iter().map(|(order, _)| *order).collect();
    assert_eq!(runs, [0, 1, 2, 0]);
}

on_every_backend!(
    stop_ends_a_failed_batch,
    vec_handler_gets_full_batches,
    many_messages_share_a_transaction,
    a_copy_within_a_batch_takes_effect_once,
    failing_message_does_not_fail_its_batch,
    undecodable_payload_does_not_fail_its_batch,
);
on_every_backend!(without memory:
    copies_in_two_processes_take_effect_once,
    a_crash_in_a_batch_leaves_nothing,
);
on_every_backend!(servers only: a_lost_session_uses_no_attempts);
