//! Where a new consumer starts in the stream.

use outbox_inbox::{Handler, Inbox, Router, StartAt};
use outbox_testing::{MemoryBroker, MemorySubscriber};

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, lines, numbered, prepare, put};
use crate::runtime::within;
use crate::support::{TestDb, slow};

noting!(start_plainly, consumer = "start_plain");

noting!(
    start_in_sequence,
    consumer = "start_sequence",
    strategy = sequence
);

fn inbox<H: Handler>(test: &TestDb, broker: &MemoryBroker, start_at: StartAt) -> Inbox<MemorySubscriber> {
    test.inbox(broker, Router::new().handler::<H>())
        .with_config(slow())
        .with_state(Orders::default())
        .with_start(H::REGISTRATION.consumer, start_at)
}

async fn starts_after<H: Handler>(test: &TestDb, start_at: StartAt, expected: &[i64]) {
    test.execute("DELETE FROM noted").await;
    test.execute("DELETE FROM inbox_messages").await;
    test.execute("DELETE FROM inbox_sequences").await;
    let (broker, consumer) = (MemoryBroker::new(), H::REGISTRATION.consumer);
    for line in 1..=3 {
        put(&broker, &numbered(1, line)).await;
    }
    let first = within(inbox::<H>(test, &broker, start_at).drain()).await.unwrap();
    for line in 4..=5 {
        put(&broker, &numbered(1, line)).await;
    }
    let second = within(inbox::<H>(test, &broker, StartAt::Beginning).drain())
        .await
        .unwrap();
    assert_eq!(
        lines(test, consumer, 1).await,
        expected,
        "{consumer}, {start_at:?}"
    );
    assert_eq!(first.handled + second.handled, expected.len() as u64);
}

async fn new_consumer_starts_as_configured_and_keeps_its_position(test: TestDb) {
    prepare(&test).await;
    let future = StartAt::Time(MemoryBroker::new().now() + std::time::Duration::from_secs(3600));
    let past = StartAt::Time(MemoryBroker::new().now() - std::time::Duration::from_secs(1));
    for (start_at, expected) in [
        (StartAt::Beginning, &[1, 2, 3, 4, 5][..]),
        (StartAt::New, &[4, 5]),
        (future, &[4, 5]),
        (past, &[1, 2, 3, 4, 5]),
    ] {
        starts_after::<start_plainly>(&test, start_at, expected).await;
        starts_after::<start_in_sequence>(&test, start_at, expected).await;
    }
}

on_every_backend!(new_consumer_starts_as_configured_and_keeps_its_position);
