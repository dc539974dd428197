//! A fetch returns only durable commits. The test for MariaDB needs a slow disk:
//! `stress/tests/it/durable.rs`.

use outbox_core::{Events, OutboxStore as _, Verdict};
use outbox_sea_orm::{OutboxConnection, SqlStore};
use outbox_testing::conformance::probe::Probe;
use sea_orm::{ConnectionTrait as _, DatabaseConnection, Statement};

use crate::support::{Backend, TestDb};

const COMMITS: u64 = 50;

async fn text(db: &DatabaseConnection, sql: &str) -> String {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db.query_one_raw(statement).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap()
}

/// With `synchronous_commit = off`, PostgreSQL shows commits early.
#[tokio::test]
async fn commits_are_durable_before_they_are_fetched() {
    let Some(test) = TestDb::open(Backend::Postgres, "durable").await else {
        return;
    };
    let separator = if test.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}options[synchronous_commit]=off", test.url());
    let db = test.connect_through(&url, |_| {}).await;
    assert_eq!(text(&db, "SHOW synchronous_commit").await, "off");
    let store = SqlStore::new(db.clone()).with_names(&test.names).unwrap();
    let warnings = store.preflight(true).await.unwrap();
    assert!(
        warnings
            .iter()
            .any(|warning| warning.seen.contains("synchronous_commit")),
        "{warnings:?}"
    );
    let (_, leases) = test.lease_all().await;
    let outbox = OutboxConnection::new(db.clone(), test.config());
    for n in 1..=COMMITS {
        let tx = outbox.begin().await.unwrap();
        outbox_sea_orm::record(&tx, Events::new().with(Probe::noted("a", n)))
            .await
            .unwrap();
        tx.commit().await.unwrap();
        let committed = text(&test.db, "SELECT pg_current_wal_insert_lsn()::text").await;
        let request = outbox_core::FetchRequest {
            leases: &leases,
            limit: 10.try_into().unwrap(),
            bytes: usize::MAX,
            in_flight: &[],
        };
        let fetched = store.fetch(request).await.unwrap();
        let is_durable = format!("SELECT (pg_current_wal_flush_lsn() >= '{committed}')::text");
        assert_eq!(text(&test.db, &is_durable).await, "true", "commit {n}");
        assert_eq!(fetched.due.len(), 1);
        let published = Verdict::Published { keep: true };
        assert_eq!(test.settle(&leases, &fetched.due, published).await, 1);
    }
}

#[tokio::test]
async fn a_setting_that_loses_commits_is_named() {
    for (backend, name, value, durable) in [
        (
            Backend::Sqlite,
            "PRAGMA synchronous",
            "SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous",
            &["2", "3"][..],
        ),
        (
            Backend::MariaDb,
            "innodb_flush_log_at_trx_commit",
            "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)",
            &["1", "3"][..],
        ),
    ] {
        let Some(test) = TestDb::open(backend, "loses_commits").await else {
            continue;
        };
        let db = test.one_connection().await;
        let store = SqlStore::new(db.clone()).with_names(&test.names).unwrap();
        let levels = match backend {
            Backend::Sqlite => &["PRAGMA synchronous = 1", "PRAGMA synchronous = 2"][..],
            _ => &["DO 0"][..],
        };
        for level in levels {
            db.execute_unprepared(level).await.unwrap();
            let value = text(&db, value).await;
            let seen = format!("{name} is {value}, so a crash loses commits");
            let warnings = store.preflight(true).await.unwrap();
            let is_named = warnings.iter().any(|warning| warning.seen.starts_with(&seen));
            assert_eq!(is_named, !durable.contains(&&*value), "{level}: {warnings:?}");
        }
    }
}

/// Two sessions cache 50 row ids each. Without the lock on the aggregate's row, the order of the
/// messages would be 2, 4, 6, 1, 3, 5.
#[tokio::test]
async fn cached_row_ids_keep_the_order_of_each_aggregate() {
    let Some(test) = TestDb::open(Backend::Postgres, "cached").await else {
        return;
    };
    let sequence = format!("SELECT pg_get_serial_sequence('{}', 'row_id')", test.messages());
    let sequence = text(&test.db, &sequence).await;
    test.execute(&format!("ALTER SEQUENCE {sequence} CACHE 50")).await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let db = test.one_connection();
        sessions.push(OutboxConnection::new(db.await, test.config()));
    }
    for n in [0, 1, 2, 3, 4, 5, 6] {
        let tx = sessions[(n + 1) % 2].begin().await.unwrap();
        let event = Probe::noted(if n == 0 { "b" } else { "a" }, n as u64);
        outbox_sea_orm::record(&tx, Events::new().with(event))
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    let row_ids = format!(
        "SELECT string_agg(sequence::text, ' ' ORDER BY row_id) FROM {} WHERE aggregate_id = 'a'",
        test.messages()
    );
    assert_eq!(text(&test.db, &row_ids).await, "1 2 3 4 5 6");
    let (_, leases) = test.lease_all().await;
    let mut numbers = Vec::new();
    loop {
        let request = outbox_core::FetchRequest {
            leases: &leases,
            limit: 2.try_into().unwrap(),
            bytes: usize::MAX,
            in_flight: &[],
        };
        let fetched = test.store().fetch(request).await.unwrap();
        if fetched.due.is_empty() {
            break;
        }
        let of_a = fetched.due.iter().filter(|row| row.aggregate.id == "a");
        numbers.extend(of_a.map(|row| row.message.as_ref().unwrap().sequence));
        let published = Verdict::Published { keep: true };
        test.settle(&leases, &fetched.due, published).await;
    }
    assert_eq!(numbers.len(), 6, "{numbers:?}");
    assert!(numbers.is_sorted(), "{numbers:?}");
}
