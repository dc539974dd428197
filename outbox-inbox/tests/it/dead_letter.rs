//! Messages that cannot be handled are kept as dead letters with their raw bytes.

use outbox_core::{DomainEvent, Incoming, codec};
use outbox_inbox::testing::{Outcome, dead_letters};
use outbox_inbox::{Router, UnknownVersion, Unreadable};
use outbox_testing::MemoryBroker;
use serde::{Deserialize, Serialize};

use crate::on_every_backend;
use crate::support::{Script, TestDb, book, delivered, message, placed, publish, quick};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 2)]
pub(crate) struct OrderPlacedV2 {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: u64,
}

async fn bad_messages_are_dead_lettered_and_good_messages_flow(test: TestDb) {
    let broker = MemoryBroker::new();
    let raw = vec![0_u8, 159, 146, 150, b'\n'];
    broker.inject(
        "foreign\0subject",
        vec![("X-Tenant".into(), "a\0b".into())],
        raw.clone(),
    );
    let mut malformed = codec::encode(&message(&placed(1)), "shop");
    for (name, value) in &mut malformed.headers {
        if name == "ce-id" {
            *value = "not a uuid".to_owned();
        }
    }
    let (headers, payload) = malformed.received();
    broker.inject("events.order.1.placed", headers, payload);
    publish(&broker, &OrderPlacedV2 { order_id: 2 }).await;
    let mut undecodable = codec::encode(&message(&placed(3)), "shop");
    undecodable.payload = raw.clone().into();
    let (headers, payload) = undecodable.received();
    broker.inject("events.order.3.placed", headers, payload);
    let mut other_type = codec::encode(&message(&placed(4)), "shop");
    for (name, value) in &mut other_type.headers {
        if name == "content-type" {
            *value = "application/protobuf".to_owned();
        }
    }
    let (headers, payload) = other_type.received();
    broker.inject("events.order.4.placed", headers, payload);
    publish(&broker, &placed(5)).await;

    let script = Script::ok();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(script.clone());
    let report = inbox.drain().await.unwrap();
    assert_eq!(
        (report.handled, report.dead_letters, report.failed),
        (1, 5, 0),
        "{report:?}"
    );
    assert_eq!(script.runs(), 1);
    assert_eq!(test.effects("books", 5).await, 1);

    let mut letters = dead_letters(&test.db, "books").await.unwrap();
    letters.sort_by_key(|letter| letter.stream_sequence);
    let start = |stream_sequence: usize, error: &str| {
        assert!(
            letters[stream_sequence].error.starts_with(error),
            "{:?}",
            letters[stream_sequence]
        );
    };
    assert_eq!(letters.len(), 5);
    start(0, "header `ce-specversion` is missing");
    assert_eq!(
        (letters[0].event_id, letters[0].raw_payload()),
        (None, raw.as_slice())
    );
    assert_eq!(letters[0].subject, "foreign\u{fffd}subject");
    assert_eq!(letters[0].headers, [("X-Tenant".to_owned(), "a\0b".to_owned())]);
    start(1, "header `ce-id` is malformed");
    start(
        2,
        "event `order.placed` version 2 has no handler in consumer `books`",
    );
    assert_eq!(letters[2].attempts, 0);
    start(3, "payload of `order.placed` version 1 cannot be decoded as");
    assert_eq!(letters[3].raw_payload(), raw);
    start(4, "content type is `application/protobuf`");
}

async fn policies_can_be_changed(test: TestDb) {
    let config = quick()
        .unreadable(Unreadable::Ignore)
        .unknown_version(UnknownVersion::Retry);
    let harness = test.harness(&Script::ok()).with_config(config);
    let foreign = Incoming {
        subject: "foreign".to_owned(),
        headers: Vec::new(),
        payload: b"x".to_vec().into(),
        delivery_count: 1,
        stream_sequence: 1,
    };
    assert_eq!(
        harness.deliver_raw::<book>(foreign.clone()).await.unwrap(),
        Outcome::Skipped
    );
    let newer = message(&OrderPlacedV2 { order_id: 1 });
    for delivery in 1..20 {
        delivered::<book>(&harness, &newer, delivery, Outcome::Later).await;
    }
    assert_eq!(
        test.row().await,
        None,
        "waiting for a newer program uses no attempts"
    );
    let config = quick()
        .unreadable(Unreadable::Retry)
        .unknown_version(UnknownVersion::Ignore);
    let harness = test.harness(&Script::ok()).with_config(config);
    assert_eq!(
        harness.deliver_raw::<book>(foreign).await.unwrap(),
        Outcome::Later
    );
    delivered::<book>(&harness, &newer, 1, Outcome::Skipped).await;
    assert!(dead_letters(&test.db, "books").await.unwrap().is_empty());
}

on_every_backend!(
    bad_messages_are_dead_lettered_and_good_messages_flow,
    policies_can_be_changed
);
