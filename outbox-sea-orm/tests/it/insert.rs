//! Recording assigns sequences without gaps in commit order, also for large batches.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::NewMessage;
use outbox_sea_orm::RecordError;
use outbox_testing::conformance::probe::Probe;
use outbox_testing::not_applicable;
use sea_orm::{ConnectionTrait, DbBackend, Statement};

use crate::support::{Backend, TestDb};

crate::on_every_backend!(
    overlapping_batches_do_not_deadlock,
    thousands_of_messages_fit_into_one_call,
    an_empty_payload_is_kept,
    repeated_key_differs_from_a_repeated_id,
);

async fn assert_contiguous(test: &TestDb) {
    let holes = format!(
        "SELECT count(*) FROM (SELECT aggregate_id FROM {} GROUP BY aggregate_id \
         HAVING count(*) <> max(sequence) OR count(DISTINCT sequence) <> count(*)) holes",
        test.messages()
    );
    assert_eq!(
        test.int(&holes).await,
        0,
        "an aggregate has a hole or a repeated number"
    );
}

async fn overlapping_batches_do_not_deadlock(test: TestDb) {
    if matches!(test.backend, Backend::Sqlite | Backend::SqliteMemory) {
        return not_applicable("this database has one writer at a time");
    }
    let test = Arc::new(test);
    let ids: Vec<u64> = (0..1_200).collect();
    // InnoDB may deadlock on missing aggregate rows in any order, so each row exists before the
    // test.
    test.record(
        ids.iter()
            .map(|n| Probe::noted(format!("a{n}"), 0))
            .collect::<Vec<_>>(),
    )
    .await
    .unwrap();
    let tasks: Vec<_> = (0..8_usize)
        .map(|writer| {
            let (test, mut ids) = (test.clone(), ids.clone());
            tokio::spawn(async move {
                if writer % 2 == 0 {
                    ids.reverse();
                }
                ids.rotate_left(writer * 37);
                let filler = if writer % 4 < 2 {
                    "x".repeat(8 * 1024)
                } else {
                    String::new()
                };
                let events: Vec<_> = ids
                    .iter()
                    .map(|n| Probe::noted(format!("a{n}"), 1).with_filler(filler.clone()))
                    .collect();
                test.record(events).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_contiguous(&test).await;
    assert_eq!(
        test.int(&format!("SELECT count(*) FROM {}", test.messages()))
            .await,
        9 * 1_200
    );
}

async fn thousands_of_messages_fit_into_one_call(test: TestDb) {
    let events: Vec<_> = (0..12_000_u64)
        .map(|n| {
            if n % 10 == 9 {
                Probe::sampled(format!("a{}", n % 7), n)
            } else {
                Probe::noted(format!("a{}", n % 1_300), n)
            }
        })
        .collect();
    test.record(events).await.unwrap();
    assert_eq!(
        test.int(&format!("SELECT count(*) FROM {}", test.messages()))
            .await,
        12_000
    );
    let mut last: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in test.fetch_all().await {
        let message = row.message.unwrap();
        let probe: Probe = serde_json::from_slice(&message.payload).unwrap();
        if let Some(sequence) = message.sequence {
            let (last, n) = last.entry(row.aggregate.id).or_default();
            assert_eq!(sequence, *last + 1);
            assert!(
                sequence == 1 || probe.n() > *n,
                "an aggregate keeps the order of the call"
            );
            (*last, *n) = (sequence, probe.n());
        }
    }
}

async fn an_empty_payload_is_kept(test: TestDb) {
    test.record([Probe::noted("a", 1)]).await.unwrap();
    test.execute(&format!("UPDATE {} SET payload = ''", test.messages()))
        .await;
    assert_eq!(test.fetch_all().await[0].message.as_ref().unwrap().payload, "");
    assert_eq!(test.fetch_all().await[0].message.as_ref().unwrap().subject, None);
}

async fn repeated_key_differs_from_a_repeated_id(test: TestDb) {
    let keyed = |key: &str| NewMessage::from_event(&Probe::noted("a", 1).with_dedup_key(key)).unwrap();
    let (first, plain) = (keyed("k"), NewMessage::from_event(&Probe::noted("a", 2)).unwrap());
    test.record([first, plain.clone()]).await.unwrap();
    for batch in [vec![keyed("k")], vec![keyed("l"), keyed("k")]] {
        let error = test.record(batch).await.unwrap_err();
        assert!(matches!(error, RecordError::DuplicateKey { .. }), "{error:?}");
    }
    let error = test.record([plain]).await.unwrap_err();
    assert!(matches!(error, RecordError::Database(_)), "{error:?}");
    test.record([keyed("l")]).await.unwrap();
    assert_eq!(test.fetch_all().await.len(), 3);
}

#[tokio::test]
async fn heads_of_other_aggregates_are_not_locked() {
    let Some(test) = TestDb::open(Backend::MariaDb, "heads").await else {
        return;
    };
    let events = |range: std::ops::RangeInclusive<u64>| -> Vec<Probe> {
        range.map(|n| Probe::noted(format!("{n:04}"), 1)).collect()
    };
    test.record(events(0..=2_000)).await.unwrap();
    let impatient = test.one_connection().await;
    impatient
        .execute_unprepared("SET SESSION innodb_lock_wait_timeout = 1")
        .await
        .unwrap();
    let impatient = outbox_sea_orm::OutboxConnection::new(impatient, test.config());
    let business = test.outbox().begin().await.unwrap();
    let mine = [Probe::noted("0003", 2), Probe::noted("0700", 2)];
    outbox_sea_orm::record(&business, mine).await.unwrap();
    for others in [vec![1..=2], vec![1..=2, 4..=5], vec![10..=509], vec![701..=1_900]] {
        let tx = impatient.begin().await.unwrap();
        let others: Vec<Probe> = others.into_iter().flat_map(events).collect();
        let count = others.len();
        let recorded = outbox_sea_orm::record(&tx, others).await;
        recorded.unwrap_or_else(|error| panic!("{count} aggregates: {error:?}"));
        tx.commit().await.unwrap();
    }
    business.commit().await.unwrap();
}

#[tokio::test]
async fn old_snapshot_assigns_no_old_sequence() {
    use sea_orm::{IsolationLevel, TransactionTrait as _};

    for backend in [Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::empty(backend, "old_snapshot").await else {
            continue;
        };
        let schema = format!("s{}", &uuid::Uuid::now_v7().simple().to_string()[14..]);
        let (create, search) = match backend {
            Backend::Postgres => (format!("CREATE SCHEMA {schema}"), None),
            _ => (format!("CREATE DATABASE {schema}"), Some(schema.clone())),
        };
        test.execute(&create).await;
        let pool = test
            .connect_again(|options| match search {
                None => {
                    options.set_schema_search_path(schema.clone());
                }
                Some(database) => {
                    options.map_sqlx_mysql_opts(move |options| options.database(&database));
                }
            })
            .await;
        outbox_sea_orm::migrate(&pool).await.unwrap();
        let old = pool
            .begin_with_config(Some(IsolationLevel::RepeatableRead), None)
            .await
            .unwrap();
        let look = Statement::from_string(
            pool.get_database_backend(),
            "SELECT count(*) FROM outbox_aggregates",
        );
        old.query_one_raw(look).await.unwrap();
        let tx = pool.begin().await.unwrap();
        outbox_sea_orm::record(&tx, [Probe::noted("a", 1)]).await.unwrap();
        tx.commit().await.unwrap();

        let recorded = outbox_sea_orm::record(&old, [Probe::noted("a", 2), Probe::noted("a", 3)]).await;
        match pool.get_database_backend() {
            DbBackend::Postgres => assert!(matches!(recorded, Err(RecordError::Database(_))), "{recorded:?}"),
            _ => {
                recorded.unwrap();
                old.commit().await.unwrap();
                let sql = "SELECT CAST(GROUP_CONCAT(sequence ORDER BY row_id SEPARATOR '') AS SIGNED) FROM outbox_messages";
                assert_eq!(crate::support::int(&pool, sql).await, 123);
            }
        }
    }
}
