//! Hostile headers: each message ends as one dead letter with its raw bytes.

use std::time::Duration;

use outbox_core::{Message, codec};
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{DeadLetterSelection, DeadLetters, Router};
use outbox_testing::MemoryBroker;

use crate::on_every_backend;
use crate::runtime::{spawn, stop, within};
use crate::support::{Backend, Script, Step, TestDb, book, message, placed, publish, slow};

fn hostile() -> Vec<(&'static str, String)> {
    let long = |length| "x".repeat(length);
    let mut cases: Vec<(&str, String)> = Vec::new();
    for value in ["", "a%00b", "%00", "%FF", "%ED%A0%80", "%"] {
        for header in ["ce-subject", "ce-aggregatetype", "content-type"] {
            cases.push((header, value.to_owned()));
        }
    }
    for (header, lengths) in [
        ("ce-subject", [256, 5_000, 100_000]),
        ("ce-aggregatetype", [65, 5_000, 100_000]),
        ("content-type", [256, 5_000, 100_000]),
    ] {
        cases.extend(lengths.map(|length| (header, long(length))));
    }
    for value in [
        "0",
        "-1",
        "9223372036854775808",
        "18446744073709551616",
        "1.5",
        "%31%00",
    ] {
        cases.push(("ce-sequence", value.to_owned()));
    }
    for value in ["0", "-1", "4294967296"] {
        cases.push(("ce-eventversion", value.to_owned()));
    }
    for value in ["", "%00", "00000000"] {
        cases.push(("ce-id", value.to_owned()));
        cases.push(("ce-messageid", value.to_owned()));
        cases.push(("ce-time", value.to_owned()));
    }
    cases
}

fn inject(broker: &MemoryBroker, message: &Message, subject: &str, header: &str, value: &str) {
    let (mut headers, payload) = codec::encode(message, "elsewhere").received();
    headers.retain(|(name, _)| name != header);
    headers.push((header.to_owned(), value.to_owned()));
    broker.inject(subject, headers, payload);
}

async fn hostile_headers_end_as_dead_letters(test: TestDb, consumer: &'static str, router: Router) {
    let broker = MemoryBroker::new();
    let cases = hostile();
    for (header, value) in &cases {
        for payload in [None, Some(&b"\xff\0x"[..])] {
            let mut message = message(&placed(1));
            message.payload = payload.map_or(message.payload.clone(), Into::into);
            inject(&broker, &message, "events.order.1.placed", header, value);
        }
    }
    let good = [message(&placed(7)), message(&placed(8))];
    inject(
        &broker,
        &good[0],
        "events.order.7.placed",
        "x-\0odd\u{fc}",
        "a\0b",
    );
    inject(&broker, &good[1], "events.order.8.placed", "x-invalid", "%FF");
    publish(&broker, &placed(5)).await;

    let inbox = test.inbox(&broker, router).with_state(Script::ok());
    let report = inbox.drain().await.unwrap();
    let letters = dead_letters(&test.db, consumer).await.unwrap();
    assert_eq!(letters.len(), 2 * cases.len(), "{report:?}");
    assert_eq!((report.handled, report.failed), (3, 0), "{report:?}");
    for order in [5, 7, 8] {
        assert_eq!(test.effects(consumer, order).await, 1, "order {order}");
    }
    assert_eq!(test.effects(consumer, 1).await, 0);
    let good = message(&placed(1)).payload;
    for letter in letters {
        assert!(letter.error.starts_with("header `"), "{}", letter.error);
        assert!(letter.error.len() < 300, "the value is quoted: {}", letter.error);
        assert!(
            letter.raw_payload() == b"\xff\0x" || letter.raw_payload() == good,
            "the raw bytes are kept"
        );
    }
}

async fn hostile_headers_with_message_id(test: TestDb) {
    hostile_headers_end_as_dead_letters(test, "books", Router::new().handler::<book>()).await;
}

/// A publisher forges the headers of an order. The order's own message comes later, under the same
/// id.
async fn headers_of_another_subject_run_no_handler(test: TestDb) {
    let broker = MemoryBroker::new();
    let order = message(&placed(1));
    let (headers, payload) = codec::encode(&order, "shop").received();
    broker.inject("events.cart.1.added", headers.clone(), payload.clone());
    let script = Script::ok();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(script.clone());
    let report = inbox.drain().await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (0, 1), "{report:?}");
    let letters = DeadLetters::new(test.db.clone());
    let all = DeadLetterSelection::consumer("books");
    let kept = letters.list(&all, 10).await.unwrap();
    assert!(
        kept[0].error.contains("does not belong on the subject"),
        "{kept:?}"
    );
    assert_eq!(kept[0].event_type, None, "its headers are not believed");
    assert_eq!(letters.retry(&all).await.unwrap(), 1);
    broker.inject("events.order.1.placed", headers, payload);
    let (shutdown, run) = spawn(inbox);
    let tried = async {
        while dead_letters(&test.db, "books").await.unwrap()[0].attempts == 0 || script.runs() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(tried).await;
    let report = stop((shutdown, run)).await;
    assert_eq!((report.handled, report.dead_letters), (1, 1), "{report:?}");
    assert_eq!(script.runs(), 1, "a retry does not run it either");
}

on_every_backend!(
    headers_of_another_subject_run_no_handler,
    hostile_headers_with_message_id
);

/// The dead letter has no payload, so a retry must not pass it to the handler.
async fn oversized_payload_is_dead_lettered_without_payload(test: TestDb) {
    let broker = MemoryBroker::new();
    let mut large = message(&placed(1));
    large.payload = [&large.payload[..], &vec![b' '; 17 * 1024 * 1024]]
        .concat()
        .into();
    let (headers, payload) = codec::encode(&large, "shop").received();
    broker.inject("events.order.1.placed", headers, payload);
    publish(&broker, &placed(2)).await;
    let script = Script::new([Step::Fatal], Step::Ok);
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(slow().concurrency(1))
        .with_state(script.clone());
    let report = inbox.drain().await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (1, 1), "{report:?}");
    let letters = DeadLetters::new(test.db.clone());
    assert_eq!(
        letters
            .retry(&DeadLetterSelection::consumer("books"))
            .await
            .unwrap(),
        1
    );
    let (shutdown, run) = spawn(inbox);
    let tried = async {
        loop {
            let left = dead_letters(&test.db, "books").await.unwrap();
            if left.first().is_none_or(|letter| letter.attempts == 2) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(tried).await;
    let report = stop((shutdown, run)).await;
    let left = dead_letters(&test.db, "books").await.unwrap();
    if test.backend != Backend::MariaDb {
        assert_eq!((report.handled, left.len()), (1, 0), "{report:?}");
        return;
    }
    assert_eq!(
        (report.dead_letters, script.runs(), left.len()),
        (1, 2, 1),
        "{report:?}"
    );
    let expected = format!("The payload of {} bytes could not be stored", large.payload.len());
    assert!(left[0].error.starts_with(&expected), "{}", left[0].error);
}

on_every_backend!(servers only: oversized_payload_is_dead_lettered_without_payload);
