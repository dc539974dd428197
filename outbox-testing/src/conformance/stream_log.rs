//! Conformance suite of [`StreamLog`], [`StreamSearch`] and [`StreamReader`].
//!
//! Invariant: the fixture's stream is empty.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use outbox_core::message::{Message, MessageId};
use outbox_core::publisher::{StreamExtent, StreamLog, StreamReader, StreamSearch, StreamedMessage};
use time::OffsetDateTime;

use super::probe::{NOTED, message};

/// One empty stream without other users.
pub trait StreamLogFixture: Send + Sync + 'static {
    /// The stream log type under test.
    type Log: StreamReader;

    /// The stream log under test.
    fn log(&self) -> &Self::Log;

    /// The broker's clock, or a clock within half a second of it.
    fn now(&self) -> impl Future<Output = OffsetDateTime> + Send;

    /// Publishes a message as a relay does and awaits the confirmation.
    fn publish(&self, message: Message) -> impl Future<Output = ()> + Send;

    /// Adds an entry to the stream that is not an outbox message.
    fn publish_foreign(&self) -> impl Future<Output = ()> + Send;
}

/// A pause between messages that exceeds the clock difference permitted by
/// [`StreamLogFixture::now`].
const APART: Duration = Duration::from_millis(1100);

async fn ids<F: StreamLogFixture>(fixture: &F, from: OffsetDateTime) -> HashSet<MessageId> {
    let ids = fixture.log().message_ids(from).await;
    ids.expect("message_ids answers")
}

/// Publishes `count` messages. Every tenth message is a replayed copy.
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

fn copy_of(message: &Message) -> Message {
    Message {
        id: MessageId::fresh(),
        ..message.clone()
    }
}

/// Every published message is listed by its own message id.
pub async fn published_messages_are_listed<F: StreamLogFixture>(fixture: &F) {
    let from = fixture.now().await - APART;
    assert_eq!(ids(fixture, from).await, HashSet::new(), "the stream is empty");
    let published = publish_many(fixture, 600).await;
    assert_eq!(ids(fixture, from).await, published);
}

/// A list with a start time omits older messages.
pub async fn a_start_time_skips_older_messages<F: StreamLogFixture>(fixture: &F) {
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

/// A list omits entries that are not outbox messages.
pub async fn foreign_messages_are_not_listed<F: StreamLogFixture>(fixture: &F) {
    let from = fixture.now().await - APART;
    fixture.publish_foreign().await;
    let published = publish_many(fixture, 3).await;
    fixture.publish_foreign().await;
    assert_eq!(ids(fixture, from).await, published);
}

/// A message on the stream is located by its own id, which differs from the id of its copy.
pub async fn a_message_on_the_stream_is_located<F: StreamLogFixture>(fixture: &F) {
    fixture.publish_foreign().await;
    let mut messages = [("a", 1), ("a", 2), ("b", 1)]
        .map(|(id, n)| message(NOTED, id, n))
        .to_vec();
    let now = fixture.now().await;
    messages.iter_mut().for_each(|message| message.created_at = now);
    let absent = copy_of(&messages[0]);
    messages.insert(0, copy_of(&messages[0]));
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

async fn read<F: StreamLogFixture>(
    fixture: &F,
    from: OffsetDateTime,
) -> (Vec<StreamedMessage>, StreamExtent) {
    let mut messages = Vec::new();
    let see = |message| {
        messages.push(message);
        true
    };
    let extent = fixture.log().read(from, see).await.expect("read answers");
    (messages, extent)
}

fn shown(message: &Message, like: &StreamedMessage) -> StreamedMessage {
    StreamedMessage {
        stream_sequence: like.stream_sequence,
        stored_at: like.stored_at,
        id: message.id,
        event_id: message.event_id,
        aggregate: message.aggregate.clone(),
        sequence: message.sequence,
        event_type: message.event_type.clone(),
        recorded_at: message.created_at,
        source: like.source.clone(),
    }
}

/// Reading returns messages in stream order and counts entries that are not outbox messages.
pub async fn messages_are_read_in_stream_order<F: StreamLogFixture>(fixture: &F) {
    let from = fixture.now().await - APART;
    assert_eq!(read(fixture, from).await.0, [], "the stream is empty");
    fixture.publish_foreign().await;
    let mut published = Vec::new();
    for n in 0..1_100 {
        let id = format!("a{}", n % 7);
        let mut message = message(NOTED, &id, n / 7 + 1);
        if n % 100 == 99 {
            message = copy_of(published.last().expect("there is one"));
        }
        fixture.publish(message.clone()).await;
        published.push(message);
    }
    fixture.publish_foreign().await;
    let (messages, extent) = read(fixture, from).await;
    assert_eq!(messages.len(), published.len());
    for (message, shows) in published.iter().zip(&messages) {
        assert_eq!(*shows, shown(message, shows));
        assert!(shows.stored_at >= from && shows.stored_at <= fixture.now().await + APART);
        assert!(!shows.source.is_empty(), "the source is read");
    }
    let sequences: Vec<u64> = messages.iter().map(|message| message.stream_sequence).collect();
    let first = extent.first_stream_sequence;
    assert_eq!(sequences, (first + 1..=first + 1_100).collect::<Vec<_>>());
    assert_eq!(extent.last_stream_sequence, first + 1_101);
    assert_eq!(extent.foreign, 2);
    let first_stored_at = extent.first_stored_at.expect("the stream has a first entry");
    assert!(first_stored_at >= from && first_stored_at <= messages[0].stored_at);
}

/// Reading starts at the given time and ends when the callback returns `false`.
pub async fn reading_starts_at_a_time_and_ends_at_the_callers_request<F: StreamLogFixture>(fixture: &F) {
    publish_many(fixture, 3).await;
    tokio::time::sleep(APART).await;
    let between = fixture.now().await;
    tokio::time::sleep(APART).await;
    let newer = publish_many(fixture, 5).await;
    let (messages, extent) = read(fixture, between).await;
    let ids: HashSet<_> = messages.iter().map(|message| message.id).collect();
    assert_eq!(ids, newer);
    assert!(extent.first_stored_at.is_some_and(|first| first < between));
    let mut seen = 0;
    let see = |_| {
        seen += 1;
        seen < 2
    };
    fixture.log().read(between, see).await.expect("read answers");
    assert_eq!(seen, 2);
    let end = fixture.now().await + APART;
    assert_eq!(read(fixture, end).await.0, []);
}

/// Generates the tests of a stream log from test attributes and an expression (may await): an
/// `Option` of a fresh [`StreamLogFixture`](crate::conformance::stream_log::StreamLogFixture).
/// `None` skips the test.
#[macro_export]
macro_rules! stream_log_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(stream_log, [$(#[$($test)*])+], $fixture, [
            published_messages_are_listed,
            a_start_time_skips_older_messages,
            foreign_messages_are_not_listed,
            a_message_on_the_stream_is_located,
            messages_are_read_in_stream_order,
            reading_starts_at_a_time_and_ends_at_the_callers_request,
        ]);
    };
}
