//! Copies of dead letters on a stream of their own.

use outbox_core::{DeadLetterCopy, DeadLetterSink as _, FailureClass, Incoming, MessageId};
use outbox_nats::async_nats::jetstream::message::StreamMessage;
use outbox_nats::{DeadLetterConfig, DeadLetterStream, ProvisionError, Provisioning};

use crate::environment::{Nats, answered, on_both_servers, refused};

on_both_servers! {
    a_copy_is_what_was_delivered_and_why_it_is_dead,
    a_repeated_copy_is_dropped_and_a_later_failure_is_not,
    hostile_dead_letters_do_no_harm,
    a_missing_stream_is_an_error_and_can_be_provisioned_by_many,
    what_is_too_large_is_refused_for_good,
}

fn sink(nats: &Nats, provisioning: Provisioning) -> DeadLetterStream {
    let config = DeadLetterConfig::default()
        .stream(&nats.name)
        .prefix(nats.prefix.clone())
        .provisioning(provisioning);
    DeadLetterStream::new(nats.client.clone(), config)
}

async fn provisioned(nats: &Nats) -> DeadLetterStream {
    let sink = sink(nats, Provisioning::Create);
    answered(async || sink.provision().await).await;
    sink
}

fn letter(headers: &[(&str, &str)]) -> DeadLetterCopy {
    DeadLetterCopy {
        id: MessageId::fresh().as_uuid(),
        consumer: "billing".to_owned(),
        event_type: Some("order.placed".to_owned()),
        error: "card was declined\r\nNats-Rollup: all\u{7}ü".to_owned(),
        attempts: 3,
        incoming: Incoming {
            subject: "events.order.7.placed".to_owned(),
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            payload: vec![0_u8, 159, 146, 150].into(),
            delivery_count: 4,
            stream_sequence: 9,
        },
    }
}

async fn stored(nats: &Nats) -> Vec<StreamMessage> {
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let mut stored = Vec::new();
    for stream_sequence in 1..=stream.cached_info().state.last_sequence {
        stored.push(stream.get_raw_message(stream_sequence).await.unwrap());
    }
    stored
}

fn header<'a>(message: &'a StreamMessage, name: &str) -> Option<&'a str> {
    message.headers.get(name).map(|value| value.as_str())
}

async fn a_copy_is_what_was_delivered_and_why_it_is_dead(nats: &Nats) {
    let sink = provisioned(nats).await;
    let letter = letter(&[("ce-id", "7"), ("ce-type", "order.placed"), ("Tenant", "x:y")]);
    sink.send(&letter).await.unwrap();
    let stored = stored(nats).await;
    let [copy] = stored.as_slice() else {
        panic!("{stored:?}")
    };
    assert_eq!(
        copy.subject.as_str(),
        format!("{}.billing.order.placed", nats.prefix)
    );
    assert_eq!(copy.payload, letter.incoming.payload);
    for (name, value) in [
        ("ce-id", "7"),
        ("ce-type", "order.placed"),
        ("Tenant", "x:y"),
        ("outbox-consumer", "billing"),
        ("outbox-attempts", "3"),
        ("outbox-error", "card was declined  Nats-Rollup: all ü"),
    ] {
        assert_eq!(header(copy, name), Some(value), "{name}");
    }
}

async fn a_repeated_copy_is_dropped_and_a_later_failure_is_not(nats: &Nats) {
    let sink = provisioned(nats).await;
    let mut letter = letter(&[]);
    for _ in 0..2 {
        sink.send(&letter).await.unwrap();
    }
    assert_eq!(stored(nats).await.len(), 1);
    letter.attempts += 1;
    sink.send(&letter).await.unwrap();
    assert_eq!(stored(nats).await.len(), 2);
}

/// Messages of other senders may hold anything. A copy must neither command the server nor end the connection.
async fn hostile_dead_letters_do_no_harm(nats: &Nats) {
    let sink = provisioned(nats).await;
    sink.send(&letter(&[])).await.unwrap();
    let mut hostile = letter(&[
        ("Nats-Rollup", "all"),
        ("nats-expected-last-sequence", "99"),
        ("Nats-Msg-Id", "mine"),
        ("", "nameless"),
        ("a b", "malformed"),
        ("ü", "not ASCII"),
        ("broken", "a\r\nb"),
        ("outbox-error", "of the original"),
    ]);
    hostile.consumer = "a.*.>".to_owned();
    for event_type in [None, Some("x".repeat(100_000)), Some("> .\r\nPUB *".to_owned())] {
        hostile.id = MessageId::fresh().as_uuid();
        hostile.event_type = event_type;
        sink.send(&hostile).await.unwrap();
    }
    let stored = stored(nats).await;
    assert_eq!(stored.len(), 4, "a copy was lost or deleted others");
    let prefix = format!("{}.a%2E%2A%2E%3E", nats.prefix);
    let subjects: Vec<_> = stored[1..].iter().map(|copy| copy.subject.as_str()).collect();
    assert_eq!(
        subjects,
        [
            format!("{prefix}.unreadable"),
            format!("{prefix}.unreadable"),
            format!("{prefix}.%3E%20.%0D%0APUB%20%2A")
        ]
    );
    for copy in &stored[1..] {
        assert_eq!(header(copy, "Nats-Rollup"), None);
        assert_ne!(header(copy, "Nats-Msg-Id"), Some("mine"));
        assert!(
            header(copy, "outbox-error")
                .unwrap()
                .starts_with("card was declined")
        );
    }
}

async fn a_missing_stream_is_an_error_and_can_be_provisioned_by_many(nats: &Nats) {
    let checking = sink(nats, Provisioning::VerifyOnly);
    let error = refused(async || checking.provision().await).await;
    assert!(matches!(error, ProvisionError::Missing { .. }), "{error}");
    let error = checking.send(&letter(&[])).await.unwrap_err();
    assert_ne!(error.class(), FailureClass::Permanent, "{error}");
    let provision = async |_| {
        let sink = sink(nats, Provisioning::Create);
        answered(async || sink.provision().await).await
    };
    let runs = (0..8).map(provision);
    let reports = futures_util::future::join_all(runs).await;
    assert!(reports.iter().any(|report| report.created));
    answered(async || checking.provision().await).await;
    checking.send(&letter(&[])).await.unwrap();
    assert_eq!(stored(nats).await.len(), 1);
}

async fn what_is_too_large_is_refused_for_good(nats: &Nats) {
    let sink = provisioned(nats).await;
    let mut large = letter(&[]);
    large.incoming.payload = vec![b'x'; nats.client.server_info().max_payload].into();
    let error = sink.send(&large).await.unwrap_err();
    assert_eq!(error.class(), FailureClass::Permanent, "{error}");
    // The connection is still the same.
    sink.send(&letter(&[])).await.unwrap();
}
