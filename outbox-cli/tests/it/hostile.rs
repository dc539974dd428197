//! Hostile message rows from a login with the right to insert.
//!
//! Invariant: each stored row is published or becomes a dead letter, rows of other aggregates
//! are published, and the relay's memory is bounded.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;

use outbox::inbox::{HandlerError, RawMessage, idempotent_handler};
use outbox::nats::async_nats::jetstream;
use outbox::nats::hints;
use outbox::prelude::*;
use outbox::sea_orm::TableNames;
use outbox::testing::eventually;
use sea_orm::{ConnectionTrait as _, DbBackend, Statement};
use uuid::Uuid;

use crate::log::{reading, until_it_reads};
use crate::operate::answer::ask;
use crate::place::{Kind, Place, Program};

const ROWS: u64 = 120;

const MEMORY_KIB: u64 = 512 * 1024;

enum Value {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Value {
    fn sql(&self, backend: DbBackend, is_text: bool) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match (self, backend) {
            (Self::Null, _) => "NULL".to_owned(),
            (Self::Number(number), _) => number.to_string(),
            (Self::Text(text), DbBackend::Postgres) if is_text => {
                format!("convert_from(decode('{}', 'hex'), 'UTF8')", hex(text.as_bytes()))
            }
            (Self::Text(text), DbBackend::MySql) if is_text => {
                format!("CONVERT(x'{}' USING utf8mb4)", hex(text.as_bytes()))
            }
            (Self::Text(text), _) if is_text => format!("CAST(x'{}' AS TEXT)", hex(text.as_bytes())),
            (Self::Text(text), _) => Self::Bytes(text.clone().into_bytes()).sql(backend, false),
            (Self::Bytes(bytes), DbBackend::Postgres) => format!("decode('{}', 'hex')", hex(bytes)),
            (Self::Bytes(bytes), _) => format!("x'{}'", hex(bytes)),
        }
    }
}

fn pick<'a>(random: &mut fastrand::Rng, from: &[&'a str]) -> &'a str {
    from[random.usize(..from.len())]
}

const TEXTS: &[&str] = &[
    "",
    "order",
    "Order",
    "a.b",
    "*",
    ">",
    "$JS.API.STREAM.PURGE.x",
    "a b",
    "'; DROP TABLE outbox_messages; --",
    "ü\u{1f600}",
    "\u{202e}txt",
    "\u{1}\u{1b}[31m",
    "a\r\nNats-Rollup: all",
    "%00%ff",
    "\\u0000",
    "{\"a\": 1}",
];

const HEADERS: &[&str] = &[
    "{}",
    "[]",
    "null",
    "\"x\"",
    "{\"Nats-Rollup\": \"all\"}",
    "{\"NATS-MSG-ID\": \"1\"}",
    "{\"nats-expected-last-sequence\": \"0\"}",
    "{\"Nats-TTL\": \"1s\"}",
    "{\"ce-id\": \"x\"}",
    "{\"CE-Sequence\": \"99\"}",
    "{\"Content-Type\": \"x\"}",
    "{\"outbox-error\": \"x\"}",
    "{\"tenant\": 1}",
    "{\"tenant\": {\"a\": []}}",
    "{\"tenant\": \"ü\"}",
    "{\"tenant\": \"a\\r\\nNats-Rollup: all\"}",
    "{\"tenant\": \"a\\u0000\"}",
    "{\"a b\": \"x\"}",
    "{\"\": \"x\"}",
    "{\"a:b\": \"x\"}",
    "{\"tenant\": \"a\", \"TENANT\": \"b\"}",
    "{\"traceparent\": \"garbage\", \"ce-correlationid\": \"%ff\"}",
    "{\"a\": \"1\", \"a\": \"2\"}",
];

#[expect(clippy::too_many_lines, reason = "one list of hostile values")]
fn row(random: &mut fastrand::Rng, n: u64, prefix: &str) -> Vec<(&'static str, Value, bool)> {
    let text = |random: &mut fastrand::Rng| match random.u8(..8) {
        0 => "x".repeat(random.usize(..300)),
        _ => pick(random, TEXTS).to_owned(),
    };
    let odd = random.u8(..8);
    let is_odd = |column: u8| odd == column || odd == 7;
    let id = match random.u8(..6) {
        0 => Uuid::from_u128(n.into()),
        1 => Uuid::from_u128(u128::MAX - u128::from(n)),
        2 | 3 => Uuid::from_u128(random.u128(..)),
        _ => Uuid::now_v7(),
    };
    let aggregate_type = if is_odd(0) {
        text(random)
    } else {
        "order".to_owned()
    };
    let mut aggregate_id = if is_odd(1) { text(random) } else { String::new() };
    aggregate_id.push_str(&format!("h{n}"));
    let subject = match random.u8(..12) {
        _ if !is_odd(2) => Value::Null,
        0 => Value::Text(format!("{prefix}.order.1.placed")),
        1 => Value::Text(format!("{prefix}.>")),
        2 => Value::Text("foreign.subject".to_owned()),
        3 => Value::Text("_INBOX.x.y".to_owned()),
        4 => Value::Text(format!("$JS.API.STREAM.DELETE.{prefix}")),
        5 => Value::Text(format!("$JS.ACK.{prefix}.billing.1.1.1.1.1")),
        _ => Value::Text(text(random)),
    };
    let payload = match random.u8(..6) {
        _ if !is_odd(5) => b"{}".to_vec(),
        0 => Vec::new(),
        1 => b"\xff\xfe\x00".to_vec(),
        2 => "[".repeat(100_000).into_bytes(),
        3 => vec![b' '; 1_200_000],
        4 => b"{\"n\": 1e999999}".to_vec(),
        _ => text(random).into_bytes(),
    };
    let headers = match random.u8(..8) {
        _ if !is_odd(6) => "{}".to_owned(),
        0 => format!("{{\"a\": \"{}\"}}", "x".repeat(20_000)),
        1 => format!("{{\"a\": {}", "[".repeat(2_000)),
        _ => pick(random, HEADERS).to_owned(),
    };
    let sequences = [1, 1, 1, 0, -1, i64::MAX, i64::MIN];
    let versions = [1, 1, 0, -1, i64::MAX, i64::from(u32::MAX) + 1];
    vec![
        ("id", Value::Bytes(id.as_bytes().to_vec()), false),
        ("partition_no", Value::Number(random.i64(0..64)), false),
        ("aggregate_type", Value::Text(aggregate_type), true),
        ("aggregate_id", Value::Text(aggregate_id), true),
        (
            "sequence",
            match random.u8(..4) {
                0 => Value::Null,
                _ if is_odd(3) => Value::Number(sequences[random.usize(..sequences.len())]),
                _ => Value::Number(1),
            },
            false,
        ),
        (
            "event_type",
            Value::Text(if is_odd(4) {
                text(random)
            } else {
                "order.placed".to_owned()
            }),
            true,
        ),
        (
            "event_version",
            Value::Number(if is_odd(3) {
                versions[random.usize(..versions.len())]
            } else {
                1
            }),
            false,
        ),
        ("subject", subject, true),
        (
            "content_type",
            Value::Text(if is_odd(4) {
                text(random)
            } else {
                "application/json".to_owned()
            }),
            true,
        ),
        ("payload", Value::Bytes(payload), false),
        ("headers", Value::Text(headers), true),
    ]
}

async fn insert(place: &Place, row: &[(&'static str, Value, bool)]) -> bool {
    let backend = place.db.get_database_backend();
    let (mut columns, mut values) = (Vec::new(), Vec::new());
    for (column, value, is_text) in row {
        columns.push(*column);
        values.push(match (*column, backend) {
            ("id", DbBackend::Postgres) => {
                let Value::Bytes(bytes) = value else {
                    unreachable!()
                };
                format!("'{}'", Uuid::from_slice(bytes).unwrap())
            }
            ("headers", DbBackend::Postgres) => format!("{}::json", value.sql(backend, *is_text)),
            ("aggregate_type" | "aggregate_id", DbBackend::MySql) => value.sql(backend, false),
            _ => value.sql(backend, *is_text),
        });
    }
    columns.push("created_at");
    values.push(
        match backend {
            DbBackend::Postgres => "clock_timestamp()",
            DbBackend::MySql => "UTC_TIMESTAMP(6)",
            _ => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
        }
        .to_owned(),
    );
    let sql = format!(
        "INSERT INTO {} ({}) VALUES ({})",
        messages(place),
        columns.join(", "),
        values.join(", ")
    );
    place.db.execute_unprepared(&sql).await.is_ok()
}

fn messages(place: &Place) -> String {
    match &place.schema {
        Some(schema) => format!("{schema}.outbox_messages"),
        None => "outbox_messages".to_owned(),
    }
}

async fn rows(place: &Place) -> Vec<(Uuid, i64)> {
    let backend = place.db.get_database_backend();
    let status = match backend {
        DbBackend::Postgres => "status::int8",
        DbBackend::MySql => "CAST(status AS SIGNED)",
        _ => "status",
    };
    let sql = format!("SELECT id, {status} AS status FROM {}", messages(place));
    let rows = place
        .db
        .query_all_raw(Statement::from_string(backend, sql))
        .await
        .unwrap();
    rows.iter()
        .map(|row| (row.try_get("", "id").unwrap(), row.try_get("", "status").unwrap()))
        .collect()
}

async fn on_stream(place: &Place) -> BTreeSet<Uuid> {
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let mut stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    let state = stream.info().await.unwrap().state.clone();
    let mut ids = BTreeSet::new();
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        for name in [
            "Nats-Rollup",
            "Nats-TTL",
            "Nats-Expected-Last-Sequence",
            "outbox-error",
        ] {
            assert!(message.headers.get(name).is_none(), "{name} at {sequence}");
        }
        let id = message.headers.get("Nats-Msg-Id").unwrap().as_str();
        ids.insert(id.parse().unwrap());
    }
    assert_eq!(
        ids.len() as u64,
        state.messages,
        "nothing was deleted or replaced"
    );
    ids
}

fn peak_kib(program: &Program) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[idempotent_handler(consumer = "hostile", messages = ["*"], backoff = "1ms..2ms")]
async fn take(_: RawMessage) -> Result<(), HandlerError> {
    Ok(())
}

async fn each_message_is_handled_or_dead(place: &Place, seed: u64) {
    let mut names = TableNames::new();
    if let Some(schema) = &place.schema {
        names = names.with_schema(schema).unwrap();
    }
    outbox::inbox::migration::migrate_with(&place.db, &names)
        .await
        .unwrap();
    let stream = EventStream::new(&place.name).with_prefix(&place.name).unwrap();
    let client = stream.connect(&place.nats).await.unwrap();
    let inbox = Inbox::new(place.db.clone(), stream.subscriber(client))
        .with_names(names)
        .with_consumers(["hostile"]);
    inbox.drain().await.unwrap();
    let handled = place
        .count("inbox_messages", "consumer = 'hostile' AND status = 1")
        .await;
    let dead = place.count("inbox_dead_letters", "consumer = 'hostile'").await;
    let sent = on_stream(place).await.len();
    assert_eq!(
        usize::try_from(handled + dead).unwrap(),
        sent,
        "seed {seed}: {handled} handled, {dead} dead letters"
    );
    let good = "consumer = 'hostile' AND aggregate_id = '42'";
    assert_eq!(place.count("inbox_dead_letters", good).await, 0, "seed {seed}");
}

#[expect(clippy::too_many_lines, reason = "the steps of one scenario")]
async fn each_row_is_published_or_dead(kind: Kind, reads_log: bool, seed: u64) {
    let Some(place) = Place::open(kind).await else {
        return;
    };
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let few = "[outbox.relay]\nattempts_max = 4\n";
    let mut program = Program::start(&(place.outbox("shop") + few), &servers);
    program.until_ready().await;
    if reads_log {
        program.terminate();
        program.end().await;
        let config = reading(&place, &place.name) + few;
        crate::log::ask(&place, &config, "relay log init --yes", &[]).expect(0);
        program = Program::start(&config, &servers);
        program.until_ready().await;
        until_it_reads(&program).await;
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut taken = 0;
    for n in 0..ROWS {
        taken += u64::from(insert(&place, &row(&mut random, n, &place.name)).await);
        if n % 20 == 0 {
            place.record(1).await;
        }
    }
    assert!(taken > ROWS / 3, "seed {seed}: the database took {taken} rows");
    let mut open = Vec::new();
    eventually(&format!("seed {seed}: each row published or dead"), async || {
        let sent = on_stream(&place).await;
        open = rows(&place).await;
        open.retain(|(id, status)| *status != 2 && !sent.contains(id));
        open.is_empty()
    })
    .await;
    let good: Vec<_> = place
        .on_stream()
        .await
        .into_iter()
        .filter(|payload| payload == "{\"n\": 1}")
        .collect();
    assert_eq!(
        good.len() as u64,
        ROWS.div_ceil(20),
        "seed {seed}: events of another aggregate"
    );
    each_message_is_handled_or_dead(&place, seed).await;
    let (dead, published): (Vec<_>, Vec<_>) = rows(&place)
        .await
        .into_iter()
        .partition(|(_, status)| *status == 2);
    let of_each = [dead.first(), published.first()];
    let mut commands = [
        "status",
        "list",
        "prove",
        "relay list",
        "audit",
        "retry --all",
        "retry --skip --all",
        "doctor",
        "dead-letters list",
        "consumers list",
        "reconcile --since 1h",
    ]
    .map(str::to_owned)
    .to_vec();
    for (id, _) in of_each.into_iter().flatten().chain(dead.iter().take(8)) {
        commands.extend(["show", "why", "timeline"].map(|command| format!("{command} {id}")));
    }
    for command in &commands {
        let answer = ask(&place, command);
        let is_expected = matches!(answer.code, Some(0..=5)) && !answer.said.contains("panicked");
        assert!(is_expected, "seed {seed}: {command:?}: {answer:?}");
        assert!(
            !answer.out.contains('\u{1b}'),
            "seed {seed}: {command:?}: {answer:?}"
        );
    }
    assert!(
        peak_kib(&program) < MEMORY_KIB,
        "seed {seed}: {} KiB",
        peak_kib(&program)
    );
    assert!(
        !program.log().contains("panicked"),
        "seed {seed}: {}",
        program.log()
    );
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    if reads_log {
        let config = reading(&place, &place.name);
        crate::log::ask(&place, &config, "relay log drop --yes", &[]).expect(0);
    }
    place.close().await;
}

#[tokio::test]
async fn hostile_rows_of_postgres_are_published_or_dead() {
    each_row_is_published_or_dead(Kind::Postgres, false, 1).await;
}

#[tokio::test]
async fn hostile_rows_of_mariadb_are_published_or_dead() {
    each_row_is_published_or_dead(Kind::MariaDb, false, 2).await;
}

#[tokio::test]
async fn hostile_rows_of_sqlite_are_published_or_dead() {
    each_row_is_published_or_dead(Kind::Sqlite, false, 3).await;
}

#[tokio::test]
async fn hostile_rows_of_a_random_seed_are_published_or_dead() {
    each_row_is_published_or_dead(Kind::Sqlite, false, fastrand::u64(..)).await;
}

#[tokio::test]
async fn hostile_rows_of_the_log_are_published_or_dead() {
    each_row_is_published_or_dead(Kind::Logical, true, 4).await;
}

/// A row of 300 MB must not end a relay with 512 MiB of memory.
async fn huge_row_becomes_dead_other_rows_are_published(reads_log: bool) {
    let kind = if reads_log { Kind::Logical } else { Kind::Postgres };
    let Some(place) = Place::open(kind).await else {
        return;
    };
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let mut program = Program::start(&place.outbox("shop"), &servers);
    program.until_ready().await;
    program.terminate();
    program.end().await;
    let config = match reads_log {
        false => place.outbox("shop"),
        true => {
            let config = reading(&place, &place.name);
            crate::log::ask(&place, &config, "relay log init --yes", &[]).expect(0);
            config
        }
    };
    place
        .execute(&format!(
            "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, payload, headers) \
             VALUES (gen_random_uuid(), 0, 'order', 'huge', 1, 'order.placed', 1, 'application/json', decode(repeat('20', 300000000), 'hex'), '{{}}')",
            messages(&place)
        ))
        .await;
    place.record(8).await;
    let mut program = Program::start(&config, &servers);
    program.until_ready().await;
    eventually("the good events on the stream", async || {
        place.on_stream().await.len() == 8
    })
    .await;
    eventually("a dead letter", async || {
        place.count("outbox_messages", "status = 2").await == 1
    })
    .await;
    assert!(peak_kib(&program) < MEMORY_KIB, "{} KiB", peak_kib(&program));
    let dead = place.count(
        "outbox_messages",
        "status = 2 AND last_error LIKE '%payload has 300000000 bytes%'",
    );
    assert_eq!(dead.await, 1);
    for command in ["status", "list"] {
        let answer = ask(&place, command);
        assert!(matches!(answer.code, Some(0..=5)), "{answer:?}");
    }
    program.terminate();
    program.end().await;
    if reads_log {
        crate::log::ask(&place, &config, "relay log drop --yes", &[]).expect(0);
    }
    place.close().await;
}

#[tokio::test]
async fn huge_row_becomes_dead_in_bounded_memory() {
    huge_row_becomes_dead_other_rows_are_published(false).await;
}

#[tokio::test]
async fn huge_logged_row_becomes_dead_in_bounded_memory() {
    huge_row_becomes_dead_other_rows_are_published(true).await;
}

#[tokio::test]
async fn program_relay_uses_hints() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
        ("RUST_LOG", "info,outbox_nats::hints=debug"),
    ];
    let mut program = Program::start(&place.outbox("shop"), &servers);
    program.until_ready().await;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    eventually("a hint in the log", async || {
        client.publish(hints::DEFAULT_SUBJECT, "".into()).await.unwrap();
        client.flush().await.unwrap();
        program.log().contains("a hint wakes the relays")
    })
    .await;
    program.terminate();
    program.end().await;
    place.close().await;
}
