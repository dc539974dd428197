//! Conformance suite of [`Publisher`]. The order of concurrent calls is not tested.
//!
//! Invariant: the fixture's stream is empty.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use bytes::Bytes;
use futures_util::future::join_all;
use outbox_core::headers::{self, Headers};
use outbox_core::message::Message;
use outbox_core::publisher::{FailureClass, PublishError, Publisher, Receipt};

use super::probe::{NOTED, OBSERVED, message, odd_aggregate_ids};
use crate::LogEntry;

/// One empty stream without other users.
pub trait PublisherFixture: Send + Sync + 'static {
    /// The publisher type under test.
    type Publisher: Publisher;

    /// The publisher under test.
    fn publisher(&self) -> &Self::Publisher;

    /// All entries of the stream, in stream order.
    fn stored(&self) -> impl Future<Output = Vec<LogEntry>> + Send;

    /// A subject that the stream accepts, other than the default subjects.
    fn fixed_subject(&self) -> String;

    /// Size in bytes of a payload that the broker cannot accept.
    fn payload_bytes_too_many(&self) -> usize;

    /// Makes the broker unreachable or reachable again.
    fn set_available(&self, available: bool) -> impl Future<Output = ()> + Send;
}

async fn publish<F: PublisherFixture>(fixture: &F, message: &Message) -> Receipt {
    let published = fixture.publisher().publish(message).await;
    published.expect("the broker confirms")
}

async fn refusal<F: PublisherFixture>(fixture: &F, message: &Message) -> PublishError {
    match fixture.publisher().publish(message).await {
        Ok(receipt) => panic!("the broker confirmed {}: {receipt:?}", message.id),
        Err(error) => error,
    }
}

async fn stored<F: PublisherFixture>(fixture: &F) -> Vec<(u64, Message)> {
    let read = |entry: LogEntry| {
        (
            entry.stream_sequence,
            entry.message.expect("the message can be read"),
        )
    };
    fixture.stored().await.into_iter().map(read).collect()
}

async fn messages<F: PublisherFixture>(fixture: &F) -> impl Iterator<Item = Message> + use<F> {
    stored(fixture).await.into_iter().map(|(_, message)| message)
}

async fn last<F: PublisherFixture>(fixture: &F) -> Message {
    messages(fixture).await.last().expect("something is stored")
}

/// A confirmed message is on the stream at the sequence in its receipt.
pub async fn a_confirmed_message_is_stored<F: PublisherFixture>(fixture: &F) {
    let messages: Vec<Message> = (1..=5).map(|sequence| message(NOTED, "a", sequence)).collect();
    let mut expected = Vec::new();
    for message in &messages {
        let receipt = publish(fixture, message).await;
        assert!(!receipt.duplicate, "a new message was treated as a copy");
        assert!(receipt.stream_sequence > 0, "stream sequences begin at 1");
        expected.push((receipt.stream_sequence, message.clone()));
        assert_eq!(stored(fixture).await, expected);
    }
}

/// A repeated message is a duplicate and stored once.
pub async fn the_same_id_is_stored_once<F: PublisherFixture>(fixture: &F) {
    let (first, other) = (message(NOTED, "a", 1), message(NOTED, "a", 2));
    let stored_at = publish(fixture, &first).await.stream_sequence;
    publish(fixture, &other).await;
    for _ in 0..2 {
        let again = publish(fixture, &first).await;
        assert_eq!((again.stream_sequence, again.duplicate), (stored_at, true));
    }
    let ids: Vec<_> = messages(fixture).await.map(|message| message.id).collect();
    assert_eq!(ids, [first.id, other.id]);
}

/// Concurrent publishes are all stored, once each.
pub async fn concurrent_publishes_are_all_stored<F: PublisherFixture>(fixture: &F) {
    let messages: Vec<Message> = (0..200).map(|n| message(NOTED, &format!("a{n}"), 1)).collect();
    let receipts = join_all(messages.iter().map(|message| publish(fixture, message))).await;
    let receipts = receipts.iter().map(|receipt| receipt.stream_sequence);
    let confirmed: BTreeMap<u64, Message> = receipts.zip(messages).collect();
    let stored = BTreeMap::from_iter(stored(fixture).await);
    assert_eq!(stored.len(), 200);
    assert_eq!(stored, confirmed, "each receipt has the place of its own message");
}

/// Concurrent copies are stored once.
pub async fn concurrent_copies_are_stored_once<F: PublisherFixture>(fixture: &F) {
    let message = message(NOTED, "a", 1);
    let results = join_all((0..10).map(|_| fixture.publisher().publish(&message))).await;
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        let is_passing = matches!(error.class(), FailureClass::Unknown | FailureClass::Transient);
        assert!(is_passing, "{error}");
    }
    assert!(publish(fixture, &message).await.duplicate);
    assert_eq!(stored(fixture).await.len(), 1);
}

/// Awaited publishes keep their order.
pub async fn awaited_publishes_keep_their_order<F: PublisherFixture>(fixture: &F) {
    for sequence in 1..=20 {
        let event = if sequence % 2 == 0 { NOTED } else { OBSERVED };
        publish(fixture, &message(event, "a", sequence)).await;
    }
    let sequences = messages(fixture).await.filter_map(|message| message.sequence);
    assert_eq!(sequences.collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
}

/// Every field arrives unchanged.
pub async fn every_field_survives<F: PublisherFixture>(fixture: &F) {
    let mut full = message(NOTED, "ü", 7);
    full.event_version = 3;
    full.content_type = "application/x-probe; charset=utf-8".to_owned();
    let headers = [
        ("tenant", "Müller & Söhne \"100%\" 😀"),
        ("empty", ""),
        ("spaces", "  a  b  "),
        (headers::CORRELATION_ID, "c-1"),
        (headers::CAUSATION_ID, "request 17"),
        (
            headers::TRACEPARENT,
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        (headers::TRACESTATE, "vendor=x,other=y"),
    ];
    let headers = BTreeMap::from(headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
    full.headers = Headers::try_from(headers).expect("the headers are legal");
    let unsequenced = Message {
        sequence: None,
        ..message(NOTED, "a", 1)
    };
    for message in [full, unsequenced] {
        publish(fixture, &message).await;
        assert_eq!(last(fixture).await, message);
    }
}

/// Payloads are arbitrary bytes, up to almost 1 MiB.
pub async fn payloads_of_all_sizes_survive<F: PublisherFixture>(fixture: &F) {
    let all_bytes: Vec<u8> = (0..=u8::MAX).collect();
    let large = vec![b'x'; 900 * 1024];
    for payload in [Vec::new(), b"\0\r\n\r\n".to_vec(), all_bytes, large] {
        let size = payload.len();
        let message = Message {
            payload: Bytes::from(payload),
            ..message(NOTED, "a", 1)
        };
        publish(fixture, &message).await;
        let received = last(fixture).await.payload;
        assert!(
            received == message.payload,
            "{size} bytes came back as {}",
            received.len()
        );
    }
}

/// Aggregate ids arrive unchanged, and each has its own subject.
pub async fn odd_aggregate_ids_survive<F: PublisherFixture>(fixture: &F) {
    let ids = odd_aggregate_ids();
    for id in &ids {
        publish(fixture, &message(NOTED, id, 1)).await;
    }
    let entries = fixture.stored().await;
    let subjects: BTreeSet<_> = entries.iter().map(|entry| entry.subject.clone()).collect();
    assert_eq!(subjects.len(), ids.len(), "two aggregates share a subject");
    let received: Vec<_> = messages(fixture)
        .await
        .map(|message| message.aggregate.id)
        .collect();
    assert_eq!(received, ids);
}

/// A fixed subject applies only to the message that has the subject.
pub async fn a_fixed_subject_is_used<F: PublisherFixture>(fixture: &F) {
    let fixed = fixture.fixed_subject();
    let exported = Message {
        subject: Some(fixed.clone()),
        ..message(NOTED, "a", 1)
    };
    publish(fixture, &exported).await;
    publish(fixture, &message(NOTED, "a", 2)).await;
    let entries = fixture.stored().await;
    assert_eq!(entries[0].subject, fixed);
    assert_ne!(entries[1].subject, fixed);
}

/// An oversized message fails permanently. Other messages are published.
pub async fn an_oversize_payload_is_permanent<F: PublisherFixture>(fixture: &F) {
    let oversize = Message {
        payload: Bytes::from(vec![b'x'; fixture.payload_bytes_too_many()]),
        ..message(NOTED, "a", 1)
    };
    assert_eq!(refusal(fixture, &oversize).await.class(), FailureClass::Permanent);
    publish(fixture, &message(NOTED, "b", 1)).await;
    assert_eq!(stored(fixture).await.len(), 1);
}

/// During an outage the publisher reports an unknown outcome. After the outage the message is
/// stored once.
pub async fn an_outage_dead_letters_no_message<F: PublisherFixture>(fixture: &F) {
    publish(fixture, &message(NOTED, "a", 1)).await;
    let message = message(NOTED, "a", 2);
    fixture.set_available(false).await;
    for _ in 0..2 {
        assert_eq!(refusal(fixture, &message).await.class(), FailureClass::Unknown);
    }
    fixture.set_available(true).await;
    for attempt in 1.. {
        match fixture.publisher().publish(&message).await {
            Ok(_) => break,
            Err(error) => assert!(attempt < 50, "the publisher did not recover: {error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let copies = messages(fixture).await.filter(|stored| stored.id == message.id);
    assert_eq!(copies.count(), 1);
}

/// A healthy broker passes its preflight.
pub async fn a_healthy_broker_passes_its_preflight<F: PublisherFixture>(fixture: &F) {
    let checked = fixture.publisher().preflight().await;
    checked.expect("the broker of the fixture is healthy");
}

/// After `abandon`, messages on the stream stay, and new messages are published.
pub async fn publishing_continues_after_abandon<F: PublisherFixture>(fixture: &F) {
    let expected: Vec<Message> = (1..=3).map(|sequence| message(NOTED, "a", sequence)).collect();
    for message in &expected {
        publish(fixture, message).await;
        fixture.publisher().abandon().await;
    }
    assert!(publish(fixture, &expected[0]).await.duplicate);
    assert_eq!(messages(fixture).await.collect::<Vec<_>>(), expected);
}

/// Generates the tests of a publisher from test attributes and an expression (may await): an
/// `Option` of a fresh [`PublisherFixture`](crate::conformance::publisher::PublisherFixture).
/// `None` skips the test.
#[macro_export]
macro_rules! publisher_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(publisher, [$(#[$($test)*])+], $fixture, [
            a_confirmed_message_is_stored,
            the_same_id_is_stored_once,
            concurrent_publishes_are_all_stored,
            concurrent_copies_are_stored_once,
            awaited_publishes_keep_their_order,
            every_field_survives,
            payloads_of_all_sizes_survive,
            odd_aggregate_ids_survive,
            a_fixed_subject_is_used,
            an_oversize_payload_is_permanent,
            an_outage_dead_letters_no_message,
            a_healthy_broker_passes_its_preflight,
            publishing_continues_after_abandon,
        ]);
    };
}
