//! `outbox_record` accepts exactly the events that Rust accepts.

use std::collections::{BTreeMap, BTreeSet};

use outbox_core::{
    AggregateId, DomainEvent, EventDescriptor, EventError, HeaderError, Limits, MessageContext, NewMessage,
};
use sea_orm::TransactionTrait;

use crate::support::TestDb;
use crate::writers::{Call, with_writers};

crate::on_every_backend!(sql_accepts_the_same_events_as_rust);

#[derive(Debug)]
struct Called {
    descriptor: &'static EventDescriptor,
    call: Call,
}

impl serde::Serialize for Called {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.call.payload.trim_matches('"'))
    }
}

impl DomainEvent for Called {
    const DESCRIPTORS: &'static [EventDescriptor] = &[];

    fn descriptor(&self) -> &'static EventDescriptor {
        self.descriptor
    }

    fn aggregate_id(&self) -> AggregateId {
        AggregateId::new(self.call.aggregate_id.clone())
    }

    fn dedup_key(&self) -> Option<String> {
        self.call.dedup_key.clone()
    }
}

fn verdict_of_rust(call: &Call, headers: &BTreeMap<String, String>) -> Result<(), &'static str> {
    let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let descriptor = EventDescriptor {
        aggregate: leak(&call.aggregate_type),
        name: leak(&call.event_name),
        version: call.event_version.unwrap_or(1).try_into().map_err(|_| "OB003")?,
        subject: call.subject.as_deref().map(leak),
        sequenced: true,
        rust_type: "",
        file: "",
        line: 0,
    };
    let event = Called {
        descriptor: Box::leak(Box::new(descriptor)),
        call: call.clone(),
    };
    let own = |name: &str| headers.get(name).cloned();
    let context = MessageContext {
        correlation_id: own("ce-correlationid"),
        causation_id: own("ce-causationid"),
        traceparent: own("traceparent"),
        tracestate: own("tracestate"),
    };
    let set_by_context = ["ce-correlationid", "ce-causationid", "traceparent", "tracestate"];
    let checked = context.sync_scope(|| {
        let mut message = NewMessage::from_event(&event)?;
        for (name, value) in headers {
            if !set_by_context.contains(&name.as_str()) {
                message = message.with_header(name, value)?;
            }
        }
        message.check(&Limits::default())
    });
    checked.map_err(|error| match error {
        EventError::Name { what, .. } => {
            if what == "aggregate type" {
                "OB001"
            } else {
                "OB002"
            }
        }
        EventError::Version { .. } => "OB003",
        EventError::Key { what, .. } => {
            if what == "aggregate id" {
                "OB004"
            } else {
                "OB005"
            }
        }
        EventError::Subject { .. } => "OB006",
        EventError::TooLarge { what, .. } => {
            if what == "payload" {
                "OB008"
            } else {
                "OB013"
            }
        }
        EventError::Header(error) => match error {
            HeaderError::Name { .. } => "OB010",
            HeaderError::Reserved { .. } => "OB011",
            _ => "OB012",
        },
        error => panic!("{error:?}"),
    })
}

async fn sql_accepts_the_same_events_as_rust(test: TestDb) {
    let test = with_writers(test).await;
    let (mut accepted, mut refused) = (0, BTreeSet::new());
    for (call, headers) in cases() {
        let expected = verdict_of_rust(&call, &headers);
        let tx = test.db.begin().await.unwrap();
        let answer = call.record(&tx, &test).await;
        tx.rollback().await.unwrap();
        match (&expected, &answer) {
            (Ok(()), Ok(())) => accepted += 1,
            (Err(code), Err(error)) => {
                refused.insert(*code);
                // PostgreSQL rejects NUL. If a header has several faults, Rust and SQL may report
                // different faults.
                let (error, of_headers) = (error.to_string(), ["OB010", "OB011", "OB012", "OB013"]);
                let named = |code: &&str| error.contains(*code);
                assert!(
                    named(code)
                        || error.contains("0x00")
                        || of_headers.contains(code) && of_headers.iter().any(named),
                    "{code}, but {error}: {call:?}"
                );
            }
            _ => panic!("Rust: {expected:?}, SQL: {answer:?}: {call:?}"),
        }
    }
    let codes = [
        "OB001", "OB002", "OB003", "OB004", "OB005", "OB006", "OB008", "OB010", "OB011", "OB012", "OB013",
    ];
    assert_eq!(refused, BTreeSet::from(codes));
    assert!(accepted > 60, "{accepted}");
}

const LIMITS: u64 = 24;

type Case = (Call, BTreeMap<String, String>);

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = (0..LIMITS).map(at_a_limit).collect();
    let places = |odd: &char| [format!("a{odd}b"), format!("{odd}a"), format!("a{odd}")];
    for text in ODD.iter().flat_map(places).chain([String::new()]) {
        cases.extend((0..6).map(|field| {
            let mut call = Call::noted("odd", field);
            let mut headers = BTreeMap::new();
            let text = text.clone();
            match field {
                0 => call.aggregate_type = text,
                1 => call.event_name = text,
                2 => call.aggregate_id = text,
                3 => call.dedup_key = Some(text),
                4 => call.subject = Some(text),
                _ => drop(headers.insert("tenant".to_owned(), text)),
            }
            call.headers = Some(serde_json::to_string(&headers).unwrap());
            (call, headers)
        }));
        cases.push(with_header(&text));
    }
    cases.extend(HEADERS.map(with_header));
    cases
}

fn with_header(name: &str) -> Case {
    let headers = BTreeMap::from([(name.to_owned(), "a".to_owned())]);
    let mut call = Call::noted("header", 1);
    call.headers = Some(serde_json::to_string(&headers).unwrap());
    (call, headers)
}

const ODD: [char; 42] = [
    '.',
    '*',
    '>',
    ' ',
    '\t',
    '\n',
    '\r',
    '\0',
    '\u{1}',
    '\u{7f}',
    '\u{80}',
    '\u{85}',
    '\u{9f}',
    '\u{a0}',
    '\u{a1}',
    '\u{1680}',
    '\u{180e}',
    '\u{2000}',
    '\u{200a}',
    '\u{200b}',
    '\u{2028}',
    '\u{202f}',
    '\u{205f}',
    '\u{3000}',
    '\u{feff}',
    '\u{fffd}',
    '\u{ffff}',
    'A',
    'ä',
    'ſ',
    '\u{212a}',
    '\u{1f600}',
    '€',
    '\\',
    '\'',
    '"',
    '%',
    '-',
    '_',
    '$',
    '0',
    'z',
];

const HEADERS: [&str; 14] = [
    "X-Tenant",
    "ce-id",
    "CE-Type",
    "ce-correlationid",
    "traceparent",
    "tracestate",
    "Content-Type",
    "content-types",
    "Nats-Msg-Id",
    "nats",
    "outbox-a",
    "Outbox_a",
    "ce_a",
    "_",
];

fn at_a_limit(n: u64) -> Case {
    let more = usize::try_from(n % 2).unwrap();
    let mut call = Call::noted("limit", n);
    let mut headers = BTreeMap::new();
    match n / 2 {
        0 => call.payload = format!("\"{}\"", "x".repeat(983_038 + more)),
        1 => {
            headers.insert("a".to_owned(), "x".repeat(16_384 - 5 + more));
        }
        2 => {
            headers = (0..12).map(|n| (format!("h{n:02}"), "ü".repeat(600))).collect();
            headers.insert("z".to_owned(), "x".repeat(16_384 - 12 * 1207 - 5 + more));
        }
        3 => call.aggregate_id = "\u{1f600}".repeat(255 + more),
        4 => call.event_version = Some(i64::from(u32::MAX) * i64::try_from(1 - more).unwrap()),
        5 => call.subject = Some("x".repeat(255 + more)),
        6 => call.aggregate_type = "x".repeat(64 + more),
        7 => call.event_name = "x".repeat(64 + more),
        8 => call.dedup_key = Some("ü".repeat(255 + more)),
        9 => {
            headers.insert("x".repeat(128 + more), String::new());
        }
        10 => {
            headers.insert(["content-types", "Content-Type"][more].to_owned(), String::new());
        }
        _ => {
            headers.insert("a".to_owned(), ["b", "b\n"][more].to_owned());
        }
    }
    call.headers = Some(serde_json::to_string(&headers).unwrap());
    (call, headers)
}
