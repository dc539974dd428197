//! Strategy `sequence` with missing or reused numbers.

use outbox_inbox::testing::dead_letters;
use outbox_inbox::{DeadLetterSelection, DeadLetters, Inbox, Router};
use outbox_testing::{MemoryBroker, eventually};

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, lines, numbered, prepare, put};
use crate::runtime::{spawn, stop, within};
use crate::support::TestDb;

noting!(note, consumer = "newcomer", strategy = sequence(gap = "1h"));

type TestInbox = Inbox<outbox_testing::MemorySubscriber>;

fn inbox(test: &TestDb, broker: &MemoryBroker, orders: &Orders) -> TestInbox {
    test.inbox(broker, Router::new().handler::<note>())
        .with_state(orders.clone())
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

on_every_backend!(events_of_a_restored_producer_are_kept_for_retry);
