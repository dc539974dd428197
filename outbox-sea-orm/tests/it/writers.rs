//! `outbox_record`, called outside this crate, records the same rows as Rust.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::{FetchedRow, Limits, Message, MessageContext, NewMessage, codec};
use outbox_sea_orm::{OutboxConnection, migration};
use outbox_testing::conformance::probe::Probe;
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement, TransactionTrait, Value};
use time::{Duration, OffsetDateTime};

use crate::support::{Backend, TestDb};

crate::on_every_backend!(
    sql_and_rust_writers_share_the_sequences,
    sql_and_rust_record_equal_messages,
    refused_call_leaves_no_sequence_gap,
    limits_raised_in_rust_need_an_edit_in_sql,
);

#[derive(Debug, Clone, Default)]
pub struct Call {
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub event_name: String,
    pub payload: String,
    pub event_version: Option<i64>,
    pub headers: Option<String>,
    pub dedup_key: Option<String>,
    pub available_at: Option<OffsetDateTime>,
    pub subject: Option<String>,
    pub sequenced: Option<bool>,
}

impl Call {
    pub fn noted(id: &str, n: u64) -> Self {
        Self {
            aggregate_type: "probe".to_owned(),
            aggregate_id: id.to_owned(),
            event_name: "noted".to_owned(),
            payload: payload(&Probe::noted(id, n)),
            ..Self::default()
        }
    }

    fn with_dedup_key(self, key: &str) -> Self {
        Self {
            dedup_key: Some(key.to_owned()),
            ..self
        }
    }

    pub async fn record(&self, conn: &impl ConnectionTrait, test: &TestDb) -> Result<(), DbErr> {
        conn.execute_raw(self.statement(test)).await.map(|_| ())
    }

    fn statement(&self, test: &TestDb) -> Statement {
        let backend = test.sql_backend();
        let name = test.names.table(backend, "outbox_record");
        let micros = self
            .available_at
            .map(|time| i64::try_from((time.unix_timestamp_nanos() + 999).div_euclid(1000)).unwrap());
        let (sql, available_at) = match backend {
            DbBackend::Postgres => (
                format!(
                    "SELECT {name}(aggregate_type => $1, aggregate_id => $2, event_name => $3, payload => $4::json, event_version => $5, \
                     headers => $6::json, dedup_key => $7, \
                     available_at => timestamptz '1970-01-01 00:00:00+00' + $8 * interval '1 microsecond', subject => $9, sequenced => $10)"
                ),
                Value::BigInt(micros),
            ),
            DbBackend::MySql => (
                format!(
                    "CALL {name}(?, ?, ?, ?, ?, ?, ?, TIMESTAMPADD(MICROSECOND, ?, TIMESTAMP'1970-01-01 00:00:00'), ?, ?, NULL)"
                ),
                Value::BigInt(micros),
            ),
            _ => (
                format!(
                    "INSERT INTO {name} (aggregate_type, aggregate_id, event_name, payload, event_version, headers, dedup_key, available_at, \
                     subject, sequenced) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                ),
                Value::BigInt(micros),
            ),
        };
        let text = |value: &Option<String>| Value::String(value.clone());
        let values = [
            Value::from(self.aggregate_type.as_str()),
            Value::from(self.aggregate_id.as_str()),
            Value::from(self.event_name.as_str()),
            Value::from(self.payload.as_str()),
            Value::BigInt(self.event_version),
            text(&self.headers),
            text(&self.dedup_key),
            available_at,
            text(&self.subject),
            Value::Bool(self.sequenced),
        ];
        Statement::from_sql_and_values(backend, sql, values)
    }
}

fn payload(event: &Probe) -> String {
    String::from_utf8(NewMessage::from_event(event).unwrap().payload().to_vec()).unwrap()
}

pub async fn with_writers(test: TestDb) -> TestDb {
    migration::writers::migrate_with(&test.db, &test.names)
        .await
        .expect("outbox_record can be created");
    test
}

fn is_transient(error: &DbErr) -> bool {
    let error = error.to_string();
    ["Deadlock", "deadlock", "database is locked"]
        .iter()
        .any(|word| error.contains(word))
}

/// Some writers roll back. Sequences still have no gaps, and increase with `row_id`.
async fn sql_and_rust_writers_share_the_sequences(test: TestDb) {
    let test = Arc::new(with_writers(test).await);
    let (writers, transactions) = match test.backend {
        Backend::SqliteMemory => (2, 12),
        Backend::Sqlite => (4, 12),
        Backend::Postgres | Backend::MariaDb => (8, 24),
    };
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let test = test.clone();
            tokio::spawn(async move {
                for n in 0..transactions {
                    let id = format!("hot ü{}", n % 3);
                    if writer % 2 == 0 {
                        record_in_rust(&test, &id, n).await;
                    } else {
                        record_in_sql(&test, &id, n).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }

    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let rows = test.fetch_all().await;
    let rolled_back = u64::try_from((0..transactions).filter(|n| n % 8 == 7).count()).unwrap();
    assert_eq!(
        u64::try_from(rows.len()).unwrap(),
        writers * (transactions - rolled_back)
    );
    for row in rows {
        assert_eq!(row.partition, row.aggregate.partition(), "{}", row.aggregate);
        let message = row.message.unwrap();
        let last = last.entry(row.aggregate.id).or_default();
        *last += 1;
        assert_eq!(message.sequence, Some(*last), "row_id {}", row.row_id);
    }
    assert_eq!(last.len(), 3);
}

async fn record_in_rust(test: &TestDb, id: &str, n: u64) {
    loop {
        let tx = test.outbox().begin().await.unwrap();
        let recorded = outbox_sea_orm::record(&tx, [Probe::noted(id, n)]).await;
        if let Err(error) = recorded {
            assert!(
                matches!(&error, outbox_sea_orm::RecordError::Database(error) if is_transient(error)),
                "{error:?}"
            );
            continue;
        }
        if n % 8 == 7 {
            return tx.rollback().await.unwrap();
        }
        match tx.commit().await {
            Ok(()) => return,
            Err(error) => assert!(is_transient(&error), "{error}"),
        }
    }
}

async fn record_in_sql(test: &TestDb, id: &str, n: u64) {
    loop {
        let tx = test.db.begin().await.unwrap();
        if let Err(error) = Call::noted(id, n).record(&tx, test).await {
            assert!(is_transient(&error), "{error}");
            tx.rollback().await.unwrap();
            continue;
        }
        if n % 8 == 7 {
            return tx.rollback().await.unwrap();
        }
        match tx.commit().await {
            Ok(()) => return,
            Err(error) => assert!(is_transient(&error), "{error}"),
        }
    }
}

async fn sql_and_rust_record_equal_messages(test: TestDb) {
    let test = with_writers(test).await;
    let context = MessageContext {
        correlation_id: Some("c-1".to_owned()),
        causation_id: Some("Grüße \"%\"".to_owned()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        tracestate: Some("a=b".to_owned()),
    };
    let headers = r#"{"Tenant": "M\u00fcller \ud83d\ude00 \\ \"q\"", "ce-correlationid": "c-1", "ce-causationid": "Grüße \"%\"",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}"#;
    let past = OffsetDateTime::UNIX_EPOCH + Duration::seconds(1);
    let rust = |event: Probe| NewMessage::from_event(&event).unwrap();
    let pairs = [
        (rust(Probe::noted("1", 1)), Call::noted("1", 1)),
        (
            context
                .sync_scope(|| rust(Probe::noted("ü \u{1f600}\n", 2).with_filler("\u{0}ü\\")))
                .with_header("Tenant", "Müller \u{1f600} \\ \"q\"")
                .unwrap(),
            Call {
                headers: Some(headers.to_owned()),
                payload: payload(&Probe::noted("ü \u{1f600}\n", 2).with_filler("\u{0}ü\\")),
                ..Call::noted("ü \u{1f600}\n", 2)
            },
        ),
        (
            rust(Probe::sampled("1", 3)),
            Call {
                event_name: "sampled".to_owned(),
                sequenced: Some(false),
                ..Call::noted("1", 3)
            },
        ),
        (
            rust(Probe::noted("late", 4).with_dedup_key("rust")).available_at(past),
            Call {
                available_at: Some(past),
                ..Call::noted("late", 4).with_dedup_key("sql")
            },
        ),
        (
            rust(Probe::noted("before 1970", 5)).available_at(OffsetDateTime::UNIX_EPOCH - Duration::DAY),
            Call {
                available_at: Some(OffsetDateTime::UNIX_EPOCH - Duration::DAY),
                ..Call::noted("before 1970", 5)
            },
        ),
    ];
    let (rust, sql): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let count = rust.len();
    test.record(rust).await.unwrap();
    let tx = test.db.begin().await.unwrap();
    for call in &sql {
        call.record(&tx, &test).await.unwrap();
    }
    tx.commit().await.unwrap();

    let rows = test.fetch_all().await;
    assert_eq!(rows.len(), 2 * count);
    let (rust, sql) = rows.split_at(count);
    for (rust, sql) in rust.iter().zip(sql) {
        assert_eq!(on_the_wire(rust), on_the_wire(sql));
        assert_eq!(
            rust.message.as_ref().unwrap().sequence.map(|number| number + 1),
            sql.message.as_ref().unwrap().sequence
        );
        id_has_the_time_of(sql.message.as_ref().unwrap());
        assert_eq!(delay_of(&test, rust).await, delay_of(&test, sql).await);
    }
    let delays = format!(
        "SELECT count(*) FROM {} WHERE available_at IS NULL",
        test.messages()
    );
    assert_eq!(test.int(&delays).await, 6);
    future_times_are_equal(&test).await;
}

async fn future_times_are_equal(test: &TestDb) {
    let micros = 4_102_444_800_123_457;
    let future = OffsetDateTime::UNIX_EPOCH + Duration::microseconds(micros);
    let event = NewMessage::from_event(&Probe::noted("future", 6)).unwrap();
    test.record([event.available_at(future)]).await.unwrap();
    let call = Call {
        available_at: Some(future),
        ..Call::noted("future", 6)
    };
    let tx = test.db.begin().await.unwrap();
    call.record(&tx, test).await.unwrap();
    tx.commit().await.unwrap();
    let delays = format!(
        "SELECT count(*) FROM {} WHERE {} = {micros}",
        test.messages(),
        micros_of_delay(test)
    );
    assert_eq!(test.int(&delays).await, 2);
}

async fn delay_of(test: &TestDb, row: &FetchedRow) -> i64 {
    let delay = format!(
        "SELECT COALESCE({}, -1) FROM {} WHERE row_id = {}",
        micros_of_delay(test),
        test.messages(),
        row.row_id
    );
    test.int(&delay).await
}

fn micros_of_delay(test: &TestDb) -> &'static str {
    match test.sql_backend() {
        DbBackend::Postgres => "(extract(epoch FROM available_at) * 1000000)::int8",
        DbBackend::MySql => "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', available_at)",
        _ => "available_at",
    }
}

fn id_has_the_time_of(message: &Message) {
    let id = message.id.as_uuid();
    assert_eq!(id.get_version_num(), 7, "{id}");
    let (seconds, _) = id.get_timestamp().expect("an id with a time").to_unix();
    let off = message.created_at - OffsetDateTime::from_unix_timestamp(seconds.try_into().unwrap()).unwrap();
    assert!(
        off.abs() < Duration::HOUR,
        "{id} is {off} away from the row's time"
    );
}

fn on_the_wire(row: &FetchedRow) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let message = row.message.as_ref().unwrap();
    let (mut headers, payload) = codec::encode(message, "shop").received();
    headers.retain(|(name, _)| !["ce-id", "ce-time", "ce-sequence"].contains(&name.as_str()));
    (row.partition, headers, payload.to_vec())
}

/// An existing deduplication key has its own error code, and the transaction may continue.
async fn refused_call_leaves_no_sequence_gap(test: TestDb) {
    let test = with_writers(test).await;
    let keyed = || Call::noted("1", 1).with_dedup_key("k");
    let tx = test.db.begin().await.unwrap();
    keyed().record(&tx, &test).await.unwrap();
    tx.commit().await.unwrap();

    let tx = test.db.begin().await.unwrap();
    let error = keyed().record(&tx, &test).await.unwrap_err().to_string();
    let is_postgres = test.sql_backend() == DbBackend::Postgres;
    let named = if is_postgres {
        "outbox_dedup_keys_pk"
    } else {
        "OB015"
    };
    assert!(error.contains(named), "{error}");
    if is_postgres {
        tx.rollback().await.unwrap();
    } else {
        tx.commit().await.unwrap();
    }
    test.record([Probe::noted("1", 2)]).await.unwrap();
    let numbers: Vec<_> = test
        .fetch_all()
        .await
        .into_iter()
        .map(|row| row.message.unwrap().sequence.unwrap())
        .collect();
    assert_eq!(numbers, [1, 2]);
}

/// The SQL functions have fixed limits. The guide explains how to edit the limits.
async fn limits_raised_in_rust_need_an_edit_in_sql(test: TestDb) {
    let test = with_writers(test).await;
    let default = Limits::default().payload_bytes_max;
    let large = Probe::noted("1", 1).with_filler("x".repeat(default));
    let call = Call {
        payload: payload(&large),
        ..Call::noted("1", 1)
    };
    let raised = test
        .config()
        .with_limits(Limits::default().payload_bytes_max(2 * default));
    let outbox = OutboxConnection::new(test.db.clone(), raised);
    let tx = outbox.begin().await.unwrap();
    outbox_sea_orm::record(&tx, [large]).await.unwrap();
    tx.commit().await.unwrap();
    let tx = test.db.begin().await.unwrap();
    let error = call.record(&tx, &test).await.unwrap_err().to_string();
    tx.rollback().await.unwrap();
    assert!(error.contains("OB008"), "{error}");

    let backend = test.sql_backend();
    let name = test.names.table(backend, "outbox_record");
    let (kind, edited) = (
        match backend {
            DbBackend::Postgres => "FUNCTION",
            DbBackend::MySql => "PROCEDURE",
            _ => "VIEW",
        },
        migration::writers::sql(backend, &test.names).unwrap(),
    );
    assert_eq!(
        edited.matches(&default.to_string()).count(),
        2,
        "the number and the message"
    );
    let edited = edited.replace(&default.to_string(), &(2 * default).to_string());
    let edited = edited
        .replace("DELIMITER //\n", "")
        .replace("END//\nDELIMITER ;", "END;");
    test.execute(&format!("DROP {kind} {name}")).await;
    test.execute(&edited).await;
    let tx = test.db.begin().await.unwrap();
    call.record(&tx, &test).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(test.fetch_all().await.len(), 2);
}

#[tokio::test]
async fn mariadb_call_needs_a_transaction_and_keeps_last_insert_id() {
    let Some(test) = TestDb::open(Backend::MariaDb, "a_call_needs_a_transaction").await else {
        return;
    };
    let test = with_writers(test).await;
    let error = Call::noted("1", 1).record(&test.db, &test).await.unwrap_err();
    assert!(error.to_string().contains("OB016"), "{error}");
    assert!(test.fetch_all().await.is_empty());

    let tx = test.db.begin().await.unwrap();
    tx.execute_unprepared("DO LAST_INSERT_ID(4711)").await.unwrap();
    Call::noted("1", 1).record(&tx, &test).await.unwrap();
    let statement = Statement::from_string(DbBackend::MySql, "SELECT CAST(LAST_INSERT_ID() AS SIGNED)");
    let row = tx.query_one_raw(statement).await.unwrap().unwrap();
    assert_eq!(row.try_get_by_index::<i64>(0).unwrap(), 4711);
    tx.commit().await.unwrap();
    assert_eq!(test.fetch_all().await.len(), 1);
}

/// The caller's `INSERT OR IGNORE` and `INSERT OR REPLACE` also affect statements in triggers.
#[tokio::test]
async fn sqlite_call_ignores_the_conflict_clause_of_the_caller() {
    let test = TestDb::open(Backend::Sqlite, "a_conflict_clause").await.unwrap();
    let test = with_writers(test).await;
    let insert = |or: &str, key: &str, id: &str| {
        format!(
            "INSERT {or} INTO outbox_record (aggregate_type, aggregate_id, event_name, payload, dedup_key, id) \
             VALUES ('probe', 1, 'noted', '{{}}', {key}, {id})"
        )
    };
    let (key, id) = ("'k'", "'019F0000-1111-7222-8333-44445555666a'");
    test.execute(&insert("", key, id)).await;
    for or in ["OR IGNORE", "OR REPLACE"] {
        test.execute(&insert(or, "NULL", "NULL")).await;
        for (key, id) in [(key, "NULL"), ("NULL", id)] {
            let error = test
                .db
                .execute_unprepared(&insert(or, key, id))
                .await
                .unwrap_err();
            assert!(error.to_string().contains("outbox OB01"), "{error}");
        }
    }
    let rows = test.fetch_all().await;
    let numbers: Vec<_> = rows
        .iter()
        .map(|row| row.message.as_ref().unwrap().sequence.unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(
        rows[0].message.as_ref().unwrap().id.to_string(),
        id.trim_matches('\'').to_lowercase()
    );
}
