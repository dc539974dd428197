//! The promises of every [`StreamLog`] and [`StreamSearch`] to code that compares the outbox with the stream.
//!
//! Each function takes a fixture whose stream is empty, and panics if its promise does not hold. Not here: publishing,
//! see [`super::publisher`].

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use time::OffsetDateTime;

use super::probe::{NOTED, message};
use crate::message::{Message, MessageId};
use crate::publisher::{StreamLog, StreamSearch};

/// Brings one broker into the states that the promises need.
///
/// One value stands for one stream that nobody else uses, empty at first.
pub trait StreamLogFixture: Send + Sync + 'static {
    /// The log under test.
    type Log: StreamSearch;

    /// The log under test.
    fn log(&self) -> &Self::Log;

    /// The broker's clock, or one that differs from it by less than half a second.
    fn now(&self) -> impl Future<Output = OffsetDateTime> + Send;

    /// Publishes a message as a relay does, and waits for the confirmation.
    fn publish(&self, message: Message) -> impl Future<Output = ()> + Send;

    /// Puts an entry onto the stream that is not a message of an outbox.
    fn publish_foreign(&self) -> impl Future<Output = ()> + Send;
}

/// Longer than the permitted difference between the clocks of [`StreamLogFixture::now`].
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

/// The log lists every message on the stream by its own id, replayed copies included, and nothing else.
pub async fn what_was_published_is_listed<F: StreamLogFixture>(fixture: &F) {
    let from = fixture.now().await - APART;
    assert_eq!(ids(fixture, from).await, HashSet::new(), "the stream is empty");
    // More messages than a server sends at a time.
    let published = publish_many(fixture, 600).await;
    assert_eq!(ids(fixture, from).await, published);
}

/// Messages stored before the given time are left out.
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

/// Foreign entries on the stream are not listed, and do not stop messages from being listed.
pub async fn foreign_messages_are_not_listed<F: StreamLogFixture>(fixture: &F) {
    let from = fixture.now().await - APART;
    fixture.publish_foreign().await;
    let published = publish_many(fixture, 3).await;
    fixture.publish_foreign().await;
    assert_eq!(ids(fixture, from).await, published);
}

/// A message is located by its own id while the stream holds it, also where others are on its subject. A replayed copy is another message.
pub async fn a_message_on_the_stream_is_located<F: StreamLogFixture>(fixture: &F) {
    fixture.publish_foreign().await;
    let mut messages = vec![
        message(NOTED, "a", 1),
        message(NOTED, "a", 2),
        message(NOTED, "b", 1),
    ];
    // As old as the clock of the broker, which a search starts from.
    let now = fixture.now().await;
    messages.iter_mut().for_each(|message| message.created_at = now);
    let copy = Message {
        id: MessageId::fresh(),
        ..messages[0].clone()
    };
    let absent = Message {
        id: MessageId::fresh(),
        ..messages[0].clone()
    };
    messages.insert(0, copy);
    for message in &messages {
        fixture.publish(message.clone()).await;
    }
    let mut located = Vec::new();
    for message in &messages {
        located.push(fixture.log().locate(message).await.expect("locate answers"));
    }
    let first = located[0].expect("the copy is on the stream");
    let expected: Vec<_> = (first..).take(messages.len()).map(Some).collect();
    assert_eq!(located, expected);
    let found = fixture.log().locate(&absent).await.expect("locate answers");
    assert_eq!(found, None);
}

/// Makes one test per promise of a stream's log. Arguments: the attributes of the tests, and an expression for an
/// `Option` of a fresh [`StreamLogFixture`](crate::testing::conformance::stream_log::StreamLogFixture). The expression
/// may await; `None` skips the test.
#[macro_export]
macro_rules! stream_log_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(stream_log, [$(#[$($test)*])+], $fixture, [
            what_was_published_is_listed,
            a_start_time_leaves_older_messages_out,
            foreign_messages_are_not_listed,
            a_message_on_the_stream_is_located,
        ]);
    };
}
