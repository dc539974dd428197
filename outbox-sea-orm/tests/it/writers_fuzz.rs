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
struct Fuzzed {
    descriptor: &'static EventDescriptor,
    call: Call,
}

impl serde::Serialize for Fuzzed {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.call.payload.trim_matches('"'))
    }
}

impl DomainEvent for Fuzzed {
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
    let event = Fuzzed {
        descriptor: Box::leak(Box::new(descriptor)),
        call: call.clone(),
    };
    // Rust sets these four through the context.
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
    let seed = std::env::var("OUTBOX_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("repeat with OUTBOX_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut accepted, mut refused) = (0, BTreeSet::new());
    for n in 0..400 {
        let (call, headers, changed) = if n < LIMITS {
            at_a_limit(n)
        } else {
            fuzzed(&mut random, n)
        };
        let expected = verdict_of_rust(&call, &headers);
        let tx = test.db.begin().await.unwrap();
        let answer = call.record(&tx, &test).await;
        tx.rollback().await.unwrap();
        match (&expected, &answer) {
            (Ok(()), Ok(())) => accepted += 1,
            (Err(code), Err(error)) => {
                refused.insert(*code);
                // PostgreSQL rejects NUL. The sides may report different wrong headers.
                let (error, of_headers) = (error.to_string(), ["OB010", "OB011", "OB012", "OB013"]);
                let names_another =
                    of_headers.contains(code) && of_headers.iter().any(|code| error.contains(code));
                assert!(
                    changed > 1 || names_another || error.contains(code) || error.contains("0x00"),
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

type Case = (Call, BTreeMap<String, String>, usize);

/// Alternates the last valid and the first invalid value.
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
    call.headers = Some(json(&headers));
    (call, headers, 1)
}

fn json(headers: &BTreeMap<String, String>) -> String {
    let string = |text: &String| {
        NewMessage::from_event(&Text(text.clone()))
            .unwrap()
            .payload()
            .to_vec()
    };
    let pairs: Vec<_> = headers
        .iter()
        .map(|(name, value)| {
            let [name, value] = [name, value].map(|text| String::from_utf8(string(text)).unwrap());
            format!("{name}: {value}")
        })
        .collect();
    format!("{{{}}}", pairs.join(", "))
}

#[derive(serde::Serialize)]
struct Text(String);

impl DomainEvent for Text {
    const DESCRIPTORS: &'static [EventDescriptor] = &[EventDescriptor {
        aggregate: "text",
        name: "written",
        version: 1,
        subject: None,
        sequenced: false,
        rust_type: "Text",
        file: file!(),
        line: line!(),
    }];

    fn descriptor(&self) -> &'static EventDescriptor {
        &Self::DESCRIPTORS[0]
    }

    fn aggregate_id(&self) -> AggregateId {
        AggregateId::new("1")
    }

    fn dedup_key(&self) -> Option<String> {
        None
    }
}

fn fuzzed(random: &mut fastrand::Rng, n: u64) -> Case {
    let mut call = Call {
        payload: "\"x\"".to_owned(),
        ..Call::noted("fuzzed", n)
    };
    let mut headers = BTreeMap::new();
    let changed = if random.u8(..) < 180 {
        1
    } else {
        random.usize(2..4)
    };
    for _ in 0..changed {
        match random.u8(..7) {
            0 => call.aggregate_type = name(random),
            1 => call.event_name = name(random),
            2 => call.aggregate_id = text(random, 250..258),
            3 => call.dedup_key = Some(text(random, 250..258)),
            4 => call.subject = Some(text(random, 60..130)),
            5 => call.event_version = Some(*random.choice(&[0, 1, 2, i64::from(u32::MAX)]).unwrap()),
            _ => {
                for _ in 0..random.usize(1..4) {
                    let name = header_name(random);
                    if !headers
                        .keys()
                        .any(|known: &String| known.eq_ignore_ascii_case(&name))
                    {
                        headers.insert(name, text(random, 250..258));
                    }
                }
            }
        }
    }
    call.headers = (!headers.is_empty() || random.bool()).then(|| json(&headers));
    (call, headers, changed)
}

fn name(random: &mut fastrand::Rng) -> String {
    let length = *random.choice(&[0, 1, 2, 9, 63, 64, 65]).unwrap();
    let mut name: String = (0..length)
        .map(|_| {
            *random
                .choice(&['a', 'k', 'z', 'b', 'c', '-', '_', '0', '9'])
                .unwrap()
        })
        .collect();
    if random.u8(..) < 200 {
        name = name.trim_start_matches(['-', '_', '0', '9']).to_owned();
    }
    strewn(random, name)
}

fn header_name(random: &mut fastrand::Rng) -> String {
    let known = [
        "tenant",
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
        "-",
    ];
    if random.bool() {
        return (*random.choice(&known).unwrap()).to_owned();
    }
    let name = "h".repeat(*random.choice(&[0, 1, 127, 128, 129]).unwrap());
    strewn(random, name)
}

fn text(random: &mut fastrand::Rng, long: std::ops::Range<usize>) -> String {
    let length = match random.u8(..8) {
        0 => 0,
        1 | 2 => random.usize(long),
        _ => random.usize(1..12),
    };
    let plain = [
        'a',
        'Z',
        '0',
        'ü',
        '\u{1f600}',
        '€',
        '\\',
        '\'',
        '"',
        '%',
        '-',
        '_',
        '$',
        '\u{fffd}',
    ];
    let mut text: String = (0..length).map(|_| *random.choice(&plain).unwrap()).collect();
    if random.bool() {
        text = text.trim_start_matches('$').to_owned();
    }
    strewn(random, text)
}

fn strewn(random: &mut fastrand::Rng, mut text: String) -> String {
    let odd = [
        '.', '.', '*', '>', ' ', '\t', '\n', '\r', '\0', '\u{1}', '\u{7f}', '\u{80}', '\u{85}', '\u{9f}',
        '\u{a0}', '\u{a1}', '\u{1680}', '\u{180e}', '\u{2000}', '\u{200a}', '\u{200b}', '\u{2028}',
        '\u{202f}', '\u{205f}', '\u{3000}', '\u{feff}', '\u{ffff}', 'A', 'ä', 'ſ', '\u{212a}',
    ];
    if random.u8(..3) == 0 {
        let places: Vec<usize> = text
            .char_indices()
            .map(|(at, _)| at)
            .chain([text.len()])
            .collect();
        text.insert(*random.choice(&places).unwrap(), *random.choice(&odd).unwrap());
    }
    text
}
