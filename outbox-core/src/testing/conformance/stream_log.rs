//! What every [`StreamLog`] promises those who reconcile the outbox with the stream.
//!
//! Each function takes a fixture whose stream is empty, and panics if its promise does not hold. Absent here: how the messages got there.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use time::OffsetDateTime;

use super::probe::{NOTED, message};
use crate::message::{Message, MessageId};
use crate::publisher::StreamLog;

/// Brings one broker into the states that the promises talk about.
///
/// One value stands for one stream that nobody else uses, empty at first.
pub trait StreamLogFixture: Send + Sync + 'static {
    /// The log under test.
    type Log: StreamLog;

    /// The log under test.
    fn log(&self) -> &Self::Log;

    /// The broker's clock, or one that differs from it by less than half a second.
    fn now(&self) -> impl Future<Output = OffsetDateTime> + Send;

    /// Publishes a message as a relay does, and waits for the confirmation.
    fn publish(&self, message: Message) -> impl Future<Output = ()> + Send;

    /// Puts something onto the stream that is no message of an outbox.
    fn publish_foreign(&self) -> impl Future<Output = ()> + Send;
}

/// Longer than the clocks of [`StreamLogFixture::now`] may differ.
const APART: Duration = Duration::from_millis(1100);

async fn ids<F: StreamLogFixture>(fixture: &F, from: OffsetDateTime) -> HashSet<MessageId> {
    fixture
        .log()
        .message_ids(from)
        .await
        .expect("message_ids answers")
}

/// Publishes messages of many aggregates, some of them replayed copies; returns their ids.
async fn publish_many<F: StreamLogFixture>(fixture: &F, count: u64) -> HashSet<MessageId> {
    let mut published = HashSet::new();
    for n in 0..count {
        let mut message = message(NOTED, &format!("a{n}"), 1);
        if n % 10 == 0 {
            message.event_id = MessageId::fresh().into();
        }
        published.insert(message.id);
        fixture.publish(message).await;
    }
    published
}

/// Every message on the stream is listed by its own id, a replayed copy too; nothing else is.
pub async fn what_was_published_is_listed<F: StreamLogFixture>(fixture: &F) {
    let from = fixture.now().await - APART;
    assert_eq!(ids(fixture, from).await, HashSet::new(), "the stream is empty");
    // More than a server sends at a time.
    let published = publish_many(fixture, 600).await;
    assert_eq!(ids(fixture, from).await, published);
}

/// What was stored before the given time is left out.
pub async fn a_start_time_leaves_older_messages_out<F: StreamLogFixture>(fixture: &F) {
    let start = fixture.now().await - APART;
    let older = publish_many(fixture, 5).await;
    tokio::time::sleep(APART).await;
    let between = fixture.now().await;
    tokio::time::sleep(APART).await;
    let newer = publish_many(fixture, 5).await;
    assert_eq!(ids(fixture, between).await, newer);
    assert_eq!(ids(fixture, start).await, &older | &newer);
    let end = fixture.now().await + APART;
    assert_eq!(ids(fixture, end).await, HashSet::new());
}

/// What others put onto the stream is not listed and keeps nothing from being listed.
pub async fn foreign_messages_are_not_listed<F: StreamLogFixture>(fixture: &F) {
    let from = fixture.now().await - APART;
    fixture.publish_foreign().await;
    let published = publish_many(fixture, 3).await;
    fixture.publish_foreign().await;
    assert_eq!(ids(fixture, from).await, published);
}

/// Makes one test per promise of a stream's log. Takes the attributes of the tests, and an expression, which may await, for an
/// `Option` of a fresh [`StreamLogFixture`](crate::testing::conformance::stream_log::StreamLogFixture); `None` skips.
#[macro_export]
macro_rules! stream_log_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(stream_log, [$(#[$($test)*])+], $fixture, [
            what_was_published_is_listed,
            a_start_time_leaves_older_messages_out,
            foreign_messages_are_not_listed,
        ]);
    };
}
