//! A row damaged by another program blocks neither other messages nor operators.

use std::time::Duration;

use outbox_core::{
    FetchedRow, HeaderError, OutboxAdmin, OutboxReader, OutboxStore, PurgeRequest, RowFault, Selection,
    Verdict,
};
use outbox_testing::Operator as _;
use outbox_testing::conformance::probe::Probe;
use sea_orm::{ConnectionTrait, DbBackend};
use uuid::Uuid;

use crate::support::{TestDb, settlements};

crate::on_every_backend!(
    damaged_number_or_time_stops_only_its_aggregate,
    a_damaged_counter_does_not_stop_its_message,
    endless_delay_stops_only_its_aggregate,
    reserved_headers_of_a_row_are_a_typed_fault,
    oversized_columns_are_a_typed_fault_and_are_not_loaded,
    names_of_rows_are_bounded,
    messages_with_any_id_version_are_found_and_purged,
);

fn damages(test: &TestDb) -> Vec<(&'static str, &'static str)> {
    match test.sql_backend() {
        DbBackend::Postgres => vec![
            ("sequence", "-1"),
            ("event_version", "-1"),
            ("created_at", "'294270-01-01'"),
        ],
        DbBackend::MySql => vec![
            ("sequence", "-1"),
            ("event_version", "-1"),
            ("created_at", "'0000-00-00'"),
        ],
        _ => vec![
            ("sequence", "'x'"),
            ("event_version", "'x'"),
            ("created_at", "'x'"),
            ("payload", "7"),
            ("id", "'x'"),
        ],
    }
}

async fn damage(test: &TestDb, column: &str, value: &str) {
    let lax = match test.sql_backend() {
        DbBackend::MySql => "SET STATEMENT sql_mode = '' FOR ",
        _ => "",
    };
    let (messages, id) = (test.messages(), "'broken'");
    let id = if test.sql_backend() == DbBackend::MySql {
        "x'62726f6b656e'"
    } else {
        id
    };
    test.execute(&format!(
        "{lax}UPDATE {messages} SET {column} = {value} WHERE aggregate_id = {id}"
    ))
    .await;
}

async fn damaged_number_or_time_stops_only_its_aggregate(test: TestDb) {
    let (_, leases) = test.lease_all().await;
    for (column, value) in damages(&test) {
        test.record([Probe::noted("broken", 1), Probe::noted("sound", 1)])
            .await
            .unwrap();
        damage(&test, column, value).await;
        let rows = test.scan(&leases, 10).await.due;
        let (broken, sound): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| row.aggregate.id == "broken");
        let unreadable = broken[0].message.as_ref().expect_err(column);
        assert!(
            unreadable.to_string().starts_with(column),
            "{column}: {unreadable}"
        );
        assert!(sound[0].message.is_ok(), "{column}");
        let dead = Verdict::Dead {
            error: unreadable.to_string(),
            halt: true,
        };
        assert_eq!(test.settle(&leases, &broken, dead).await, 1);
        test.settle(&leases, &sound, Verdict::Published { keep: false })
            .await;
        let store = test.store();
        let dead = store
            .list(&Selection::dead_letters(), 10.try_into().unwrap())
            .await
            .unwrap();
        assert!(dead.len() == 1 && dead[0].halts, "{column}: {dead:?}");
        store.backlog().await.unwrap();
        assert_eq!(
            store.retry(&Selection::dead_letters()).await.unwrap(),
            1,
            "{column}"
        );
        test.execute(&format!("DELETE FROM {}", test.messages())).await;
    }
}

async fn a_damaged_counter_does_not_stop_its_message(test: TestDb) {
    let value = match test.sql_backend() {
        DbBackend::Sqlite => "'x'",
        _ => "-1",
    };
    test.record([Probe::noted("broken", 1)]).await.unwrap();
    damage(&test, "attempts", value).await;
    damage(&test, "failures", value).await;
    let rows = test.fetch_all().await;
    assert!(rows[0].message.is_ok(), "{rows:?}");
    assert_eq!((rows[0].attempts, rows[0].failures), (u32::MAX, u32::MAX));
}

async fn endless_delay_stops_only_its_aggregate(test: TestDb) {
    let never = match test.sql_backend() {
        DbBackend::Postgres => "'infinity'",
        DbBackend::MySql => "'9999-12-31 23:59:59.999999'",
        _ => "'never'",
    };
    test.record([
        Probe::noted("broken", 1),
        Probe::noted("broken", 2),
        Probe::noted("sound", 1),
    ])
    .await
    .unwrap();
    damage(&test, "available_at", never).await;
    let (_, leases) = test.lease_all().await;
    let fetched = test.scan(&leases, 10).await;
    assert_eq!((fetched.waits.len(), fetched.due.len()), (2, 1));
    assert_eq!(test.store().settle(&leases, &fetched.waits).await.unwrap(), 2);
    let published = settlements(&fetched.due, &Verdict::Published { keep: true });
    assert_eq!(test.store().settle(&leases, &published).await.unwrap(), 1);
    assert_eq!(test.fetch_waiting(&leases).await.due, []);
    assert_eq!(test.store().backlog().await.unwrap().waiting, 2);
}

async fn fault(test: &TestDb, column: &str, value: &str) -> RowFault {
    test.record([Probe::noted("broken", 1), Probe::noted("sound", 1)])
        .await
        .unwrap();
    damage(test, column, value).await;
    let rows = test.fetch_all().await;
    let (broken, sound): (Vec<FetchedRow>, Vec<_>) =
        rows.into_iter().partition(|row| row.aggregate.id == "broken");
    assert!(sound[0].message.is_ok(), "{column}");
    let stored = test
        .store()
        .list(&Selection::all(), 10.try_into().unwrap())
        .await
        .unwrap();
    let id = stored.iter().find(|row| row.aggregate.id == "broken").unwrap().id;
    let found = test.store().find(id).await.unwrap().unwrap();
    let fault = broken[0].message.clone().unwrap_err();
    assert_eq!(found.message.unwrap_err(), fault, "{column}");
    test.execute(&format!("DELETE FROM {}", test.messages())).await;
    fault
}

async fn reserved_headers_of_a_row_are_a_typed_fault(test: TestDb) {
    for name in [
        "Nats-Rollup",
        "nats-msg-id",
        "NATS-TTL",
        "ce-id",
        "Ce-Sequence",
        "outbox-error",
    ] {
        let fault = fault(&test, "headers", &format!("'{{\"{name}\": \"all\"}}'")).await;
        assert!(
            matches!(fault, RowFault::Header(HeaderError::Reserved { .. })),
            "{name}: {fault:?}"
        );
    }
}

async fn oversized_columns_are_a_typed_fault_and_are_not_loaded(test: TestDb) {
    let large = (64 << 20) + 1;
    let payload = match test.sql_backend() {
        DbBackend::Postgres => Some(format!("decode(repeat('00', {large}), 'hex')")),
        DbBackend::MySql => None,
        _ => Some(format!("zeroblob({large})")),
    };
    if let Some(payload) = payload {
        let fault = fault(&test, "payload", &payload).await;
        assert!(
            matches!(
                fault,
                RowFault::TooLarge {
                    column: "payload",
                    size_bytes: 67_108_865,
                    limit_bytes: 67_108_864,
                    ..
                }
            ),
            "{fault:?}"
        );
    }
    let (text, size) = match test.sql_backend() {
        DbBackend::Postgres => ("json_build_object('a', repeat('x', 1048576))", 1_048_586),
        DbBackend::MySql => ("CONCAT('{\"a\": \"', REPEAT('x', 1048576), '\"}')", 1_048_585),
        _ => ("'{\"a\": \"' || printf('%.*c', 1048576, 'x') || '\"}'", 1_048_585),
    };
    let fault = fault(&test, "headers", text).await;
    assert!(
        matches!(fault, RowFault::TooLarge { column: "headers", size_bytes, .. } if size_bytes == size),
        "{fault:?}"
    );
}

/// Only PostgreSQL stores names of any length. A row with an overlong name becomes a dead letter.
async fn names_of_rows_are_bounded(test: TestDb) {
    let is_postgres = test.sql_backend() == DbBackend::Postgres;
    let (_, leases) = test.lease_all().await;
    for (column, limit) in [
        ("aggregate_type", 64_u64),
        ("aggregate_id", 1_020),
        ("event_type", 129),
        ("subject", 255),
        ("content_type", 1_020),
    ] {
        for (bytes, sequence) in [(limit + 1, "1"), (40_000_000, "NULL")] {
            test.record([Probe::noted("broken", 1)]).await.unwrap();
            let messages = test.messages();
            if !is_postgres {
                let long = "x".repeat(1_021);
                let sql = format!("UPDATE {messages} SET {column} = '{long}'");
                assert!(test.db.execute_unprepared(&sql).await.is_err(), "{column}");
                break;
            }
            let set = format!("{column} = repeat('x', {bytes}), sequence = {sequence}");
            test.execute(&format!("UPDATE {messages} SET {set}")).await;
            let rows = test.fetch_all().await;
            let key = &rows[0].aggregate;
            assert!(key.aggregate_type.len() + key.id.len() < 1_100, "{column}");
            let fault = rows[0].message.clone().unwrap_err();
            let RowFault::TooLarge {
                column: named,
                size_bytes,
                limit_bytes,
            } = fault
            else {
                panic!("{column}: {fault:?}");
            };
            assert_eq!((named, limit_bytes), (column, limit));
            assert!(size_bytes > limit, "{column}: {size_bytes}");
            let dead = Verdict::Dead {
                error: fault.to_string(),
                halt: true,
            };
            assert_eq!(test.settle(&leases, &rows, dead).await, 1, "{column}");
            assert_eq!(test.fetch_all().await, [], "{column}");
            for table in [messages, test.blocks()] {
                test.execute(&format!("DELETE FROM {table}")).await;
            }
        }
    }
}

async fn messages_with_any_id_version_are_found_and_purged(test: TestDb) {
    let store = test.store();
    for n in 1..=20_u64 {
        test.record([Probe::noted(n.to_string(), 1)]).await.unwrap();
        let id = Uuid::from_u128(u128::from(n) << 123 | 0x4000 << 64 | u128::from(n));
        let id = match test.sql_backend() {
            DbBackend::Postgres => format!("'{id}'"),
            _ => format!("x'{}'", id.simple()),
        };
        let key = match test.sql_backend() {
            DbBackend::MySql => format!(
                "x'{}'",
                n.to_string()
                    .bytes()
                    .map(|b| format!("{b:02x}"))
                    .collect::<String>()
            ),
            _ => format!("'{n}'"),
        };
        test.execute(&format!(
            "UPDATE {} SET id = {id} WHERE aggregate_id = {key}",
            test.messages()
        ))
        .await;
    }
    let now = time::OffsetDateTime::now_utc();
    let (from, until) = (now - time::Duration::HOUR, now + time::Duration::HOUR);
    let page = 7.try_into().unwrap();
    let (mut recorded, mut after) = (0, None);
    loop {
        let rows = store.recorded_between(from, until, after, page).await.unwrap();
        recorded += rows.len();
        after = rows.last().map(|row| row.id);
        if after.is_none() {
            break;
        }
    }
    assert_eq!(recorded, 20);
    let (_, leases) = test.lease_all().await;
    let rows = test.scan(&leases, 100).await.due;
    test.settle(&leases, &rows, Verdict::Published { keep: true })
        .await;
    let published = store
        .published(from, until, None, 100.try_into().unwrap())
        .await
        .unwrap();
    assert_eq!(published.len(), 20);
    let long_ago = match test.sql_backend() {
        DbBackend::Postgres => "clock_timestamp() - interval '2 hours'",
        DbBackend::MySql => "UTC_TIMESTAMP(6) - INTERVAL 2 HOUR",
        _ => "0",
    };
    test.execute(&format!(
        "UPDATE {} SET created_at = {long_ago}, published_at = {long_ago}",
        test.messages()
    ))
    .await;
    let (mut deleted, mut after) = (0, None);
    loop {
        let request = PurgeRequest {
            older_than: Some(Duration::from_secs(3600)),
            keys_older_than: Duration::from_secs(3600),
            after,
            limit: page,
        };
        let purged = store.purge(request).await.unwrap();
        deleted += purged.deleted;
        after = purged.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(deleted, 20);
}
