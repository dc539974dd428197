//! The test vectors of docs/wire-format.md, for implementations in other languages.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use outbox_core::codec::{DecodeError, decode, encode};
use outbox_core::{Aggregate, EventId, Headers, Message, MessageId};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

const SOURCE: &str = "shop";

/// `OUTBOX_BLESS=1` rewrites the vectors.
#[test]
fn wire_format_vectors_are_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/wire-format.json");
    let messages: Vec<Value> = messages()
        .iter()
        .map(|(name, message)| vector(name, message))
        .collect();
    let vectors = json!({ "messages": messages, "refused": refused(), "partitions": partitions() });
    if std::env::var_os("OUTBOX_BLESS").is_some() {
        let text = format!("{}\n", serde_json::to_string_pretty(&vectors).unwrap());
        std::fs::write(&path, text).unwrap();
    }
    let checked_in: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(
        checked_in == vectors,
        "docs/wire-format.json is out of date; run this test with OUTBOX_BLESS=1"
    );
}

#[test]
fn codec_agrees_with_the_wire_format_vectors() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/wire-format.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for (vector, (name, message)) in vectors["messages"].as_array().unwrap().iter().zip(messages()) {
        let payload = vector["payload"].as_str().unwrap().to_owned();
        let decoded = decode(&pairs(&vector["headers"]), Bytes::from(payload)).unwrap();
        assert_eq!(decoded, message, "{name}");
        let encoded = encode(&decoded, SOURCE).received().0;
        let encoded: BTreeMap<_, _> = encoded.into_iter().collect();
        assert_eq!(json!(encoded), vector["headers"], "{name}");
    }
    for vector in vectors["refused"].as_array().unwrap() {
        let error = decode(&pairs(&vector["headers"]), Bytes::new()).unwrap_err();
        let (DecodeError::Missing { header }
        | DecodeError::Malformed { header }
        | DecodeError::Limit { header, .. }) = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(header, vector["wrong"].as_str().unwrap(), "{vector}");
    }
}

fn pairs(headers: &Value) -> Vec<(String, String)> {
    let headers = headers.as_object().unwrap().iter();
    headers
        .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

fn vector(name: &str, message: &Message) -> Value {
    let (headers, payload) = encode(message, SOURCE).received();
    let headers: BTreeMap<_, _> = headers.into_iter().collect();
    let own: BTreeMap<_, _> = message.headers.iter().collect();
    json!({
        "name": name,
        "message": {
            "id": message.id.to_string(),
            "event_id": message.event_id.to_string(),
            "source": SOURCE,
            "aggregate_type": message.aggregate.aggregate_type,
            "aggregate_id": message.aggregate.id,
            "sequence": message.sequence,
            "event_type": message.event_type,
            "event_version": message.event_version,
            "content_type": message.content_type,
            "created_at": message.created_at.format(&Rfc3339).unwrap(),
            "headers": own,
        },
        "subject": subject(message),
        "nats_msg_id": message.id.to_string(),
        "headers": headers,
        "payload": String::from_utf8(payload.to_vec()).unwrap(),
    })
}

fn subject(message: &Message) -> String {
    let token = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        text.bytes()
            .map(|byte| {
                if plain(byte) {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect::<String>()
    };
    format!(
        "events.{}.{}.{}",
        token(&message.aggregate.aggregate_type),
        token(&message.aggregate.id),
        token(message.event_name())
    )
}

fn messages() -> Vec<(&'static str, Message)> {
    let id = |n: u128| Uuid::from_u128(0x019f_0000_1111_7222_8333_4444_5555_0000 + n);
    let message = |n, aggregate_id: &str| Message {
        id: MessageId::from(id(n)),
        event_id: EventId::from(id(n)),
        aggregate: Aggregate::new("order", aggregate_id),
        sequence: Some(u64::try_from(n).unwrap()),
        event_type: "order.placed".to_owned(),
        event_version: 1,
        subject: None,
        content_type: "application/json".to_owned(),
        payload: Bytes::from_static(b"{\"order_id\": \"42\"}"),
        headers: Headers::default(),
        created_at: OffsetDateTime::from_unix_timestamp_nanos(1_767_323_045_678_901_000).unwrap(),
    };
    let headers: Headers = serde_json::from_value(json!({
        "tenant": "Müller & Söhne \"100%\"",
        "empty": "",
        "ce-correlationid": "c-1",
        "ce-causationid": "request 17",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=b,c=d",
    }))
    .unwrap();
    let mut unsequenced = message(3, "a.b *>");
    unsequenced.sequence = None;
    let mut replayed = message(4, "42");
    replayed.event_id = EventId::from(id(1));
    replayed.sequence = Some(1);
    vec![
        ("plain", message(1, "42")),
        (
            "with headers of every kind",
            Message {
                headers,
                event_version: 4_294_967_295,
                ..message(2, "ü \u{1f600}\n")
            },
        ),
        ("unsequenced, with an id of odd characters", unsequenced),
        ("a replayed copy", replayed),
        (
            "the longest names and numbers",
            Message {
                aggregate: Aggregate::new("a".repeat(64), "€".repeat(255)),
                event_type: format!("{}.{}", "a".repeat(64), "b".repeat(64)),
                sequence: Some(i64::MAX.unsigned_abs()),
                payload: Bytes::from_static("{\"text\": \"ü\\u0000\"}".as_bytes()),
                ..message(5, "")
            },
        ),
    ]
}

fn refused() -> Vec<Value> {
    let (_, plain) = messages().remove(0);
    let headers: BTreeMap<_, _> = encode(&plain, SOURCE).received().0.into_iter().collect();
    let required = [
        "ce-specversion",
        "ce-id",
        "ce-eventversion",
        "ce-time",
        "ce-aggregatetype",
        "ce-subject",
        "ce-type",
        "content-type",
    ];
    let missing = required.map(|header| (header, None));
    let wrong = [
        ("ce-specversion", "0.3".to_owned()),
        ("ce-id", "42".to_owned()),
        ("ce-eventversion", "0".to_owned()),
        ("ce-eventversion", "4294967296".to_owned()),
        ("ce-sequence", "0".to_owned()),
        ("ce-sequence", "9223372036854775808".to_owned()),
        ("ce-time", "yesterday".to_owned()),
        ("ce-subject", String::new()),
        ("ce-subject", "a%00".to_owned()),
        ("ce-subject", "%C3".to_owned()),
        ("ce-subject", "%4".to_owned()),
        ("ce-subject", "%C3%BC".repeat(256)),
        ("ce-aggregatetype", "x".repeat(65)),
        ("ce-type", "x".repeat(130)),
        ("ce-source", "x".repeat(256)),
    ];
    let wrong = wrong.into_iter().map(|(header, value)| (header, Some(value)));
    missing
        .into_iter()
        .chain(wrong)
        .map(|(header, value)| {
            let mut headers = headers.clone();
            headers.remove(header);
            headers.extend(value.map(|value| (header.to_owned(), value)));
            json!({ "wrong": header, "headers": headers })
        })
        .collect()
}

fn partitions() -> Vec<Value> {
    let ids = [
        "1",
        "2",
        "3",
        "ü",
        "\u{1f600}",
        "a b",
        "019f0000-1111-7222-8333-444455556666",
    ];
    ids.iter()
        .map(|id| {
            let partition = Aggregate::new("order", *id).partition();
            json!({ "aggregate_type": "order", "aggregate_id": id, "partition": partition })
        })
        .collect()
}
