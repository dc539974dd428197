//! Strategy `sequence` with missing or reused numbers.

use outbox_core::{Message, codec};
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{DeadLetterSelection, DeadLetters, Inbox, Router};
use outbox_testing::{MemoryBroker, eventually};

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn, stop, within};
use crate::support::{TestDb, quick, slow};

noting!(note, consumer = "newcomer", strategy = sequence(gap = "1h"));

type TestInbox = Inbox<outbox_testing::MemorySubscriber>;

fn inbox(test: &TestDb, broker: &MemoryBroker, orders: &Orders) -> TestInbox {
    test.inbox(broker, Router::new().handler::<note>())
        .with_state(orders.clone())
}

fn put_from(source: &str, broker: &MemoryBroker, message: &Message) {
    let (headers, payload) = codec::encode(message, source).received();
    let subject = format!("events.order.{}.placed", message.aggregate.id);
    broker.inject(subject, headers, payload);
}

async fn new_consumer_does_not_wait_for_removed_messages(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    let mut forgotten = Vec::new();
    for line in 1..=4 {
        for order_id in 0..40 {
            let message = numbered(order_id, line);
            put(&broker, &message).await;
            if line < 3 || line == 3 && order_id % 2 == 0 {
                forgotten.push(broker.log().last().unwrap().stream_sequence);
            }
        }
    }
    broker.lose_stream_sequences(&forgotten.into_iter().collect(), false);
    let config = slow().in_flight_max(4).blocked_max(4).concurrency(2);
    let running: Vec<_> = [test.db.clone(), test.connect_again().await]
        .into_iter()
        .map(|db| {
            let inbox = Inbox::new(db, broker.subscriber())
                .with_router(Router::new().handler::<note>())
                .with_config(config.clone())
                .with_state(orders.clone());
            spawn(inbox)
        })
        .collect();
    within(broker.until_idle("newcomer")).await;
    for (shutdown, run) in running {
        assert_eq!(stop((shutdown, run)).await.dead_letters, 0);
    }
    for order_id in 0..40 {
        let left: &[i64] = if order_id % 2 == 0 { &[4] } else { &[3, 4] };
        assert_eq!(lines(&test, "newcomer", order_id).await, left, "order {order_id}");
    }
}

async fn events_of_a_restored_producer_are_kept_for_retry(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for line in [1, 2, 3] {
        put(&broker, &numbered(1, line)).await;
    }
    let inbox = inbox(&test, &broker, &orders);
    assert_eq!(within(inbox.drain()).await.unwrap().handled, 3);
    let restored = [numbered(1, 2), numbered(1, 3), numbered(1, 4)];
    for message in &restored {
        put(&broker, message).await;
    }
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!(
        (report.handled, report.duplicates, report.dead_letters),
        (1, 0, 2),
        "{report:?}"
    );
    let letters = dead_letters(&test.db, "newcomer").await.unwrap();
    assert!(
        letters
            .iter()
            .all(|letter| letter.error.contains("another event with the same sequence")),
        "{letters:?}"
    );
    for message in &restored {
        put(&broker, &crate::orders::copy(message)).await;
    }
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.duplicates), (0, 3), "{report:?}");
    let all = DeadLetterSelection::consumer("newcomer");
    assert_eq!(DeadLetters::new(test.db.clone()).retry(&all).await.unwrap(), 2);
    let (shutdown, run) = spawn(inbox);
    eventually("the retries", async || {
        lines(&test, "newcomer", 1).await.len() == 6
    })
    .await;
    stop((shutdown, run)).await;
    assert_eq!(lines(&test, "newcomer", 1).await, [1, 2, 3, 4, 2, 3]);
    assert!(dead_letters(&test.db, "newcomer").await.unwrap().is_empty());
}

async fn two_services_with_one_aggregate_name_lose_nothing(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put_from("shop", &broker, &numbered(1, 1));
    put_from("shop", &broker, &numbered(1, 3));
    for line in 1..=4 {
        put_from("store", &broker, &numbered(1, line));
    }
    let (shutdown, run) = spawn(inbox(&test, &broker, &orders).with_config(quick()));
    eventually("all but the gap", async || {
        lines(&test, "newcomer", 1).await.len() == 5
    })
    .await;
    put_from("shop", &broker, &numbered(1, 2));
    let report = finish(&broker, "newcomer", (shutdown, run)).await;
    assert_eq!((report.handled, report.dead_letters), (7, 0), "{report:?}");
    let mut all = lines(&test, "newcomer", 1).await;
    all.sort_unstable();
    assert_eq!(all, [1, 1, 2, 2, 3, 3, 4]);
}

on_every_backend!(
    events_of_a_restored_producer_are_kept_for_retry,
    two_services_with_one_aggregate_name_lose_nothing,
);
on_every_backend!(without memory: new_consumer_does_not_wait_for_removed_messages);
