//! Messages that cannot be handled are kept as dead letters with their raw bytes.

use outbox_core::{DomainEvent, Incoming, codec};
use outbox_inbox::testing::{Outcome, dead_letters};
use outbox_inbox::{Event, HandlerError, Router, Tx, UnknownVersion, Unreadable, idempotent_handler};
use outbox_testing::MemoryBroker;
use sea_orm::ConnectionTrait as _;
use serde::{Deserialize, Serialize};

use crate::on_every_backend;
use crate::runtime::{spawn, until_delivered, within};
use crate::support::{
    Script, TestDb, book, delivered, message, only_letter, placed, publish, quick, slow, with_ack_wait,
};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 2)]
pub(crate) struct OrderPlacedV2 {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: u64,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "cancelled")]
struct OrderCancelled {
    #[domain_event(aggregate_id)]
    order_id: u64,
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

/// Errors go to logs, tables and streams with more readers than the payload.
async fn errors_do_not_quote_the_payload(test: TestDb) {
    let harness = test.harness(&Script::ok());
    for payload in [
        r#"{"order_id": "CANARY", "line": 0}"#,
        r#"{"order_id": 1, "line": -4711}"#,
        r#"["CANARY", "4711"]"#,
        "CANARY 4711",
    ] {
        let mut message = message(&placed(1));
        message.payload = payload.into();
        let outcome = harness.deliver_message::<book>(&message).await.unwrap();
        assert_eq!(outcome, Outcome::DeadLettered);
        let letter = only_letter(&test, "books").await;
        let error = &letter.error;
        assert!(
            error.starts_with("payload of `order.placed` version 1 cannot be decoded as ")
                && error.contains(" at line 1 "),
            "{error}"
        );
        assert!(!error.contains("CANARY") && !error.contains("4711"), "{error}");
        let quoted = "SELECT count(*) FROM inbox_messages WHERE last_error LIKE '%CANARY%' OR last_error LIKE '%4711%'";
        assert_eq!(test.int(quoted).await, 0);
        assert_eq!(
            test.int("SELECT count(*) FROM inbox_messages WHERE last_error IS NOT NULL")
                .await,
            1
        );
        test.execute("DELETE FROM inbox_messages").await;
        test.execute("DELETE FROM inbox_dead_letters").await;
    }
}

async fn redelivered_dead_letter_stays_single(test: TestDb) {
    let broker = MemoryBroker::new();
    broker.lose_consumer_acks(2);
    broker.inject("foreign", Vec::new(), &b"x"[..]);
    publish(&broker, &OrderPlacedV2 { order_id: 2 }).await;
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(with_ack_wait(2))
        .with_state(Script::ok());
    inbox.drain().await.unwrap();
    assert_eq!(broker.deliveries("books"), 4);
    assert_eq!(dead_letters(&test.db, "books").await.unwrap().len(), 2);
}

async fn messages_of_other_types_are_skipped(test: TestDb) {
    // Old servers cannot filter by several subjects.
    let message = message(&OrderCancelled { order_id: 1 });
    let outcome = test
        .harness(&Script::ok())
        .deliver_message::<book>(&message)
        .await
        .unwrap();
    assert_eq!(outcome, Outcome::Skipped);
    assert_eq!(test.row().await, None);
    assert!(dead_letters(&test.db, "books").await.unwrap().is_empty());
}

#[idempotent_handler(consumer = "books")]
async fn book_newer(event: Event<OrderPlacedV2>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let sql = format!(
        "INSERT INTO effects (consumer, order_id) VALUES ('books', {})",
        event.order_id
    );
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

async fn newer_version_returns_until_a_newer_program_runs(test: TestDb) {
    let broker = MemoryBroker::new();
    let config = slow().unknown_version(UnknownVersion::Retry);
    let older = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(config.clone())
        .with_state(Script::ok());
    let (stop_older, older) = spawn(older);
    publish(&broker, &OrderPlacedV2 { order_id: 1 }).await;
    until_delivered(&broker, "books", 1).await;
    let newer = test
        .inbox(&broker, Router::new().handler::<book_newer>())
        .with_config(config);
    let (stop_newer, newer) = spawn(newer);
    within(broker.until_idle("books")).await;
    assert_eq!(test.effects("books", 1).await, 1);
    stop_older.cancel();
    stop_newer.cancel();
    let (older, newer) = (within(older).await.unwrap(), within(newer).await.unwrap());
    assert!(older.sent_back > 0, "{older:?}");
    assert_eq!((newer.handled, newer.dead_letters), (1, 0), "{newer:?}");
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
    errors_do_not_quote_the_payload,
    redelivered_dead_letter_stays_single,
    messages_of_other_types_are_skipped,
    policies_can_be_changed,
    newer_version_returns_until_a_newer_program_runs,
);
