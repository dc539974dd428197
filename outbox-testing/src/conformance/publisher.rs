//! The promises of every [`Publisher`] to the relay.
//!
//! Each function takes a fixture whose stream is empty, and panics if its promise does not hold. Not here: order
//! between concurrent calls, which publishers do not owe.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use bytes::Bytes;
use futures_util::future::join_all;
use outbox_core::headers::{self, Headers};
use outbox_core::message::Message;
use outbox_core::publisher::{FailureClass, PublishError, Publisher, Receipt};

use super::probe::{NOTED, OBSERVED, message, odd_aggregate_ids};
use crate::{LogEntry, not_applicable};

/// Brings one broker into the states that the promises need.
///
/// One value stands for one stream that nobody else uses, empty at first.
pub trait PublisherFixture: Send + Sync + 'static {
    /// The publisher under test.
    type Publisher: Publisher;

    /// The capabilities of this broker.
    fn capabilities(&self) -> PublisherCapabilities;

    /// The publisher under test.
    fn publisher(&self) -> &Self::Publisher;

    /// Everything on the stream, in stream order.
    fn stored(&self) -> impl Future<Output = Vec<LogEntry>> + Send;

    /// A subject other than the default one that the stream accepts.
    fn fixed_subject(&self) -> String;

    /// Size in bytes of a payload that the broker cannot accept.
    fn payload_bytes_too_many(&self) -> usize;

    /// Makes the broker unreachable, or reachable again. Called only with [`PublisherCapabilities::outage`].
    fn set_available(&self, available: bool) -> impl Future<Output = ()> + Send;
}

/// Capabilities of a [`PublisherFixture`]'s broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublisherCapabilities {
    /// Whether the fixture can make the broker unreachable.
    pub outage: bool,
}

async fn publish<F: PublisherFixture>(fixture: &F, message: &Message) -> Receipt {
    fixture
        .publisher()
        .publish(message)
        .await
        .expect("the broker confirms")
}

async fn refusal<F: PublisherFixture>(fixture: &F, message: &Message) -> PublishError {
    match fixture.publisher().publish(message).await {
        Ok(receipt) => panic!("the broker confirmed {}: {receipt:?}", message.id),
        Err(error) => error,
    }
}

/// Everything on the stream with its stream sequences. Every entry must be readable.
async fn stored<F: PublisherFixture>(fixture: &F) -> Vec<(u64, Message)> {
    let read = |entry: LogEntry| match entry.message {
        Ok(message) => (entry.stream_sequence, message),
        Err(error) => panic!(
            "stream sequence {} cannot be read: {error}",
            entry.stream_sequence
        ),
    };
    fixture.stored().await.into_iter().map(read).collect()
}

/// A confirmed message is on the stream, at the stream sequence in the receipt.
pub async fn a_confirmed_message_is_stored<F: PublisherFixture>(fixture: &F) {
    let messages: Vec<Message> = (1..=5).map(|sequence| message(NOTED, "a", sequence)).collect();
    let mut expected = Vec::new();
    for message in &messages {
        let receipt = publish(fixture, message).await;
        assert!(!receipt.duplicate, "a new message was taken for a copy");
        assert!(
            receipt.stream_sequence > 0,
            "a confirmation without a stream sequence proves nothing"
        );
        expected.push((receipt.stream_sequence, message.clone()));
        assert_eq!(stored(fixture).await, expected);
    }
}

/// The broker recognises a message that is published again, and keeps one copy.
pub async fn the_same_id_is_stored_once<F: PublisherFixture>(fixture: &F) {
    let (first, other) = (message(NOTED, "a", 1), message(NOTED, "a", 2));
    let stored_at = publish(fixture, &first).await.stream_sequence;
    publish(fixture, &other).await;
    for _ in 0..2 {
        let again = publish(fixture, &first).await;
        assert_eq!(
            again,
            Receipt {
                stream_sequence: stored_at,
                duplicate: true
            }
        );
    }
    let ids: Vec<_> = stored(fixture)
        .await
        .into_iter()
        .map(|(_, message)| message.id)
        .collect();
    assert_eq!(ids, [first.id, other.id]);
}

/// Two messages with the same content are two messages.
pub async fn equal_messages_with_different_ids_are_both_stored<F: PublisherFixture>(fixture: &F) {
    for _ in 0..2 {
        assert!(!publish(fixture, &message(NOTED, "a", 1)).await.duplicate);
    }
    assert_eq!(stored(fixture).await.len(), 2);
}

/// Many concurrent publishes, each of them confirmed, are all stored, each once.
pub async fn concurrent_publishes_are_all_stored<F: PublisherFixture>(fixture: &F) {
    let messages: Vec<Message> = (0..200).map(|n| message(NOTED, &format!("a{n}"), 1)).collect();
    let receipts = join_all(messages.iter().map(|message| publish(fixture, message))).await;
    let confirmed: BTreeMap<u64, _> = receipts
        .iter()
        .zip(&messages)
        .map(|(receipt, message)| (receipt.stream_sequence, message.id))
        .collect();
    let stored: BTreeMap<u64, _> = stored(fixture)
        .await
        .into_iter()
        .map(|(stream_sequence, message)| (stream_sequence, message.id))
        .collect();
    assert_eq!(stored.len(), messages.len());
    assert_eq!(stored, confirmed, "each receipt says where its own message is");
}

/// The same message published twice at the same time is stored once.
pub async fn concurrent_copies_are_stored_once<F: PublisherFixture>(fixture: &F) {
    let message = message(NOTED, "a", 1);
    let results = join_all((0..10).map(|_| fixture.publisher().publish(&message))).await;
    // A broker may ask the caller to come back while the first copy is on its way. It may not refuse for good.
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert!(
            matches!(error.class(), FailureClass::Unknown | FailureClass::Transient),
            "{error}"
        );
    }
    assert!(publish(fixture, &message).await.duplicate);
    assert_eq!(stored(fixture).await.len(), 1);
}

/// Messages of one aggregate that are published one after the other keep that order on the stream.
pub async fn awaited_publishes_keep_their_order<F: PublisherFixture>(fixture: &F) {
    for sequence in 1..=20 {
        publish(
            fixture,
            &message(if sequence % 2 == 0 { NOTED } else { OBSERVED }, "a", sequence),
        )
        .await;
    }
    let sequences: Vec<_> = stored(fixture)
        .await
        .into_iter()
        .filter_map(|(_, message)| message.sequence)
        .collect();
    assert_eq!(sequences, (1..=20).collect::<Vec<_>>());
}

/// Nothing of a message is lost or changed on the way.
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
        let (_, received) = stored(fixture).await.pop().expect("something is stored");
        assert_eq!(received, message);
    }
}

/// Payloads are arbitrary bytes: empty, of any value, nearly as large as brokers accept.
pub async fn payloads_of_all_sizes_survive<F: PublisherFixture>(fixture: &F) {
    let all_bytes: Vec<u8> = (0..=u8::MAX).collect();
    for payload in [
        Vec::new(),
        b"\0\r\n\r\n".to_vec(),
        all_bytes,
        vec![b'x'; 900 * 1024],
    ] {
        let size = payload.len();
        let message = Message {
            payload: Bytes::from(payload),
            ..message(NOTED, "a", 1)
        };
        publish(fixture, &message).await;
        let (_, received) = stored(fixture).await.pop().expect("something is stored");
        assert!(
            received.payload == message.payload,
            "payload of {size} bytes came back with {}",
            received.payload.len()
        );
    }
}

/// An aggregate id arrives unchanged and has a subject of its own, whatever it means to the broker.
pub async fn odd_aggregate_ids_survive<F: PublisherFixture>(fixture: &F) {
    let ids = odd_aggregate_ids();
    for id in &ids {
        publish(fixture, &message(NOTED, id, 1)).await;
    }
    let entries = fixture.stored().await;
    let subjects: BTreeSet<_> = entries.iter().map(|entry| entry.subject.clone()).collect();
    assert_eq!(subjects.len(), ids.len(), "two aggregates share a subject");
    let received: Vec<_> = stored(fixture)
        .await
        .into_iter()
        .map(|(_, message)| message.aggregate.id)
        .collect();
    assert_eq!(received, ids);
}

/// A fixed subject replaces the default one, only for its own message.
pub async fn a_fixed_subject_is_used<F: PublisherFixture>(fixture: &F) {
    let fixed = fixture.fixed_subject();
    publish(
        fixture,
        &Message {
            subject: Some(fixed.clone()),
            ..message(NOTED, "a", 1)
        },
    )
    .await;
    publish(fixture, &message(NOTED, "a", 2)).await;
    let subjects: Vec<_> = fixture
        .stored()
        .await
        .into_iter()
        .map(|entry| entry.subject)
        .collect();
    assert_eq!(subjects[0], fixed);
    assert_ne!(subjects[1], fixed);
}

/// A message that the broker can never accept is refused for good, and other messages are not affected.
pub async fn an_oversize_payload_is_permanent<F: PublisherFixture>(fixture: &F) {
    let oversize = Message {
        payload: Bytes::from(vec![b'x'; fixture.payload_bytes_too_many()]),
        ..message(NOTED, "a", 1)
    };
    assert_eq!(refusal(fixture, &oversize).await.class(), FailureClass::Permanent);
    publish(fixture, &message(NOTED, "b", 1)).await;
    assert_eq!(stored(fixture).await.len(), 1);
}

/// While the broker is unreachable, publishing ends and the outcome is unknown, whether or not the message was sent.
/// Afterwards the same message goes through and is stored once, whatever became of the earlier attempts.
pub async fn an_outage_condemns_no_message<F: PublisherFixture>(fixture: &F) {
    if !fixture.capabilities().outage {
        return not_applicable("this fixture cannot make its broker unreachable");
    }
    publish(fixture, &message(NOTED, "a", 1)).await;
    let message = message(NOTED, "a", 2);
    fixture.set_available(false).await;
    for _ in 0..2 {
        let class = refusal(fixture, &message).await.class();
        assert_eq!(
            class,
            FailureClass::Unknown,
            "nobody can say what became of a message when the broker is silent"
        );
    }
    fixture.set_available(true).await;
    // Reconnecting may take some attempts. Each may end as during the outage.
    for attempt in 1.. {
        match fixture.publisher().publish(&message).await {
            Ok(_) => break,
            Err(error) => assert!(attempt < 50, "the publisher did not recover: {error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let copies = stored(fixture)
        .await
        .into_iter()
        .filter(|(_, stored)| stored.id == message.id)
        .count();
    assert_eq!(copies, 1);
}

/// A broker that is set up passes its preflight.
pub async fn a_healthy_broker_passes_its_preflight<F: PublisherFixture>(fixture: &F) {
    fixture
        .publisher()
        .preflight()
        .await
        .expect("the broker of the fixture is healthy");
}

/// After unconfirmed publishes were abandoned, publishing is allowed at once, and stored messages stay stored.
pub async fn publishing_goes_on_after_abandoning<F: PublisherFixture>(fixture: &F) {
    let messages: Vec<Message> = (1..=3).map(|sequence| message(NOTED, "a", sequence)).collect();
    for message in &messages {
        publish(fixture, message).await;
        fixture.publisher().abandon().await;
    }
    assert!(publish(fixture, &messages[0]).await.duplicate);
    let ids: Vec<_> = stored(fixture)
        .await
        .into_iter()
        .map(|(_, message)| message.id)
        .collect();
    let expected: Vec<_> = messages.iter().map(|message| message.id).collect();
    assert_eq!(ids, expected);
}

/// Makes one test per promise of a publisher. Arguments: the attributes of the tests, and an expression for an `Option`
/// of a fresh [`PublisherFixture`](crate::conformance::publisher::PublisherFixture). The expression may await;
/// `None` skips the test.
#[macro_export]
macro_rules! publisher_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(publisher, [$(#[$($test)*])+], $fixture, [
            a_confirmed_message_is_stored,
            the_same_id_is_stored_once,
            equal_messages_with_different_ids_are_both_stored,
            concurrent_publishes_are_all_stored,
            concurrent_copies_are_stored_once,
            awaited_publishes_keep_their_order,
            every_field_survives,
            payloads_of_all_sizes_survive,
            odd_aggregate_ids_survive,
            a_fixed_subject_is_used,
            an_oversize_payload_is_permanent,
            an_outage_condemns_no_message,
            a_healthy_broker_passes_its_preflight,
            publishing_goes_on_after_abandoning,
        ]);
    };
}
