//! Recording in transactions of sqlx: everything is as in transactions of SeaORM, and both number the same aggregates.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::{NewMessage, Relay, wake};
use outbox_sea_orm::{RecordError, record, sqlx as plain};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, not_applicable};
use sea_orm::sqlx::{Connection as _, Executor as _};
use sea_orm::{DbBackend, DbErr};
use time::OffsetDateTime;

use crate::on_every_backend;
use crate::shop::{Shop, context};
use crate::support::{Backend, TestDb};

on_every_backend!(
    both_ways_number_the_same_aggregates_without_holes,
    both_ways_record_the_same,
    a_transaction_of_sqlx_stores_change_and_event_or_neither,
    an_event_that_is_refused_through_sqlx_is_not_recorded,
    a_connection_outside_of_a_transaction_is_refused,
    a_failed_transaction_of_sqlx_is_not_reported_as_committed,
);

/// Runs the same code with a pool of any driver.
macro_rules! with_pool {
    ($test:expr, $pool:ident => $work:expr) => {
        match $test.sql_backend() {
            DbBackend::Postgres => {
                let $pool = $test.db.get_postgres_connection_pool().clone();
                $work
            }
            DbBackend::MySql => {
                let $pool = $test.db.get_mysql_connection_pool().clone();
                $work
            }
            _ => {
                let $pool = $test.db.get_sqlite_connection_pool().clone();
                $work
            }
        }
    };
}

/// Runs the same code in a transaction of any driver.
macro_rules! with_tx {
    ($test:expr, $tx:ident => $work:expr) => {
        with_pool!($test, pool => {
            let mut $tx = pool.begin().await.unwrap();
            $work
        })
    };
}

/// Records two events through sqlx or SeaORM, and commits or rolls back. Repeated after a conflict.
async fn write(test: &TestDb, n: u64) {
    let messages: Vec<_> = [n, n + 1]
        .map(|n| NewMessage::from_event(&Probe::noted(format!("hot{}", n % 3), n)).unwrap())
        .into();
    let (config, outbox, ends_well) = (test.config(), test.outbox(), n % 10 != 7);
    loop {
        let recorded = if n.is_multiple_of(2) {
            with_tx!(test, tx => match plain::record_with(&mut tx, &config, messages.clone()).await {
                Ok(_) if ends_well => plain::commit(tx).await.map_err(RecordError::Database),
                Ok(_) => tx.rollback().await.map_err(|error| panic!("{error}")),
                Err(error) => Err(error),
            })
        } else {
            let tx = outbox.begin().await.unwrap();
            match record(&tx, messages.clone()).await {
                Ok(_) if ends_well => tx.commit().await.map_err(RecordError::Database),
                Ok(_) => tx.rollback().await.map_err(RecordError::Database),
                Err(error) => Err(error),
            }
        };
        match recorded {
            Ok(()) => return,
            Err(error) => assert!(error.is_conflict(), "{error:?}"),
        }
    }
}

/// Writers use sqlx and SeaORM in turns, over the same three aggregates. Then a relay publishes each aggregate in the order of its numbers.
async fn both_ways_number_the_same_aggregates_without_holes(test: TestDb) {
    let writers = if test.backend == Backend::SqliteMemory {
        2
    } else {
        4
    };
    let test = Arc::new(test);
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let test = test.clone();
            tokio::spawn(async move {
                for n in 0..20 {
                    write(&test, writer * 1_000 + n).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let broker = MemoryBroker::new();
    let relay = Relay::new(test.store(), broker.publisher());
    relay.drain().await.unwrap();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for message in broker.messages() {
        let last = last.entry(message.aggregate.id).or_default();
        *last += 1;
        assert_eq!(message.sequence, Some(*last));
    }
    // Two transactions of twenty were rolled back.
    assert_eq!(last.values().sum::<u64>(), writers * 18 * 2);
    assert_eq!(last.len(), 3);
}

async fn both_ways_record_the_same(test: TestDb) {
    let later = OffsetDateTime::now_utc() + time::Duration::hours(1);
    let messages = |aggregate: &str| {
        let made =
            |n| NewMessage::from_event(&Probe::noted(aggregate, n).with_dedup_key(format!("{aggregate}{n}")));
        let scoped = context().sync_scope(|| made(1).unwrap().with_header("tenant", "eu").unwrap());
        [scoped, made(2).unwrap().available_at(later)]
    };
    let before = OffsetDateTime::now_utc();
    let ids = with_tx!(test, tx => {
        let ids = plain::record_with(&mut tx, &test.config(), messages("a")).await.unwrap();
        plain::commit(tx).await.unwrap();
        ids
    });
    test.record(messages("b")).await.unwrap();
    let recorded = outbox_sea_orm::testing::recorded_in(&test.db, &test.names)
        .await
        .unwrap();
    let (a, b) = recorded.split_at(2);
    assert_eq!(ids, a.iter().map(|message| message.id).collect::<Vec<_>>());
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.id.as_uuid().get_version_num(), 7);
        assert!((a.created_at - before).abs() < time::Duration::minutes(5));
        assert_eq!(
            (
                &a.event_type,
                a.event_version,
                a.sequence,
                &a.headers,
                &a.content_type,
                a.payload.len(),
            ),
            (
                &b.event_type,
                b.event_version,
                b.sequence,
                &b.headers,
                &b.content_type,
                b.payload.len(),
            )
        );
    }
    assert_eq!(a[0].headers.get("tenant"), Some("eu"));
    // The second is delayed.
    assert_eq!(test.fetch_all().await.len(), 2);
    let differ = format!(
        "SELECT count(*) FROM {m} a JOIN {m} b ON b.sequence = a.sequence AND b.available_at = a.available_at \
         WHERE a.sequence = 2 AND a.aggregate_id <> b.aggregate_id",
        m = test.messages()
    );
    assert_eq!(test.int(&differ).await, 2);
}

async fn a_transaction_of_sqlx_stores_change_and_event_or_neither(test: TestDb) {
    let shop = Shop::open(test).await;
    let (test, config) = (&shop.test, shop.test.config());
    let insert = format!(
        "INSERT INTO save_orders (marker, total_cents) VALUES ('{}', 1)",
        shop.marker
    );
    let mut commits = wake::Listener::new();
    with_pool!(test, pool => {
        // Rolled back, dropped, and committed; the last through the connection, and in a nested transaction as well.
        for end in 0..3 {
            let mut connection = pool.acquire().await.unwrap();
            let mut tx = connection.begin().await.unwrap();
            tx.execute(sea_orm::sqlx::AssertSqlSafe(insert.clone())).await.unwrap();
            plain::record_with(&mut *tx, &config, [Probe::noted("a", end)]).await.unwrap();
            let mut nested = tx.begin().await.unwrap();
            plain::record_with(&mut nested, &config, [Probe::noted("a", end)]).await.unwrap();
            match end {
                0 => {
                    nested.commit().await.unwrap();
                    tx.rollback().await.unwrap();
                }
                1 => drop(nested),
                _ => {
                    nested.rollback().await.unwrap();
                    plain::commit(tx).await.unwrap();
                }
            }
        }
    });
    commits.notified().await;
    assert_eq!(shop.orders().await, 1);
    assert_eq!(shop.recorded().await, [("probe.noted".to_owned(), Some(1))]);
}

async fn an_event_that_is_refused_through_sqlx_is_not_recorded(test: TestDb) {
    let config = test.config();
    let keyed = || Probe::noted("a", 1).with_dedup_key("k");
    test.record([keyed()]).await.unwrap();
    let refused = with_tx!(test, tx => {
        let invalid = plain::record_with(&mut tx, &config, [Probe::noted("", 1)]).await.unwrap_err();
        assert!(matches!(invalid, RecordError::Event(_)), "{invalid:?}");
        let large = Probe::noted("a", 1).with_filler("x".repeat(2 << 20));
        let large = plain::record_with(&mut tx, &config, [large]).await.unwrap_err();
        assert!(matches!(large, RecordError::Event(_)), "{large:?}");
        plain::record_with(&mut tx, &config, [keyed()]).await.unwrap_err()
    });
    assert!(matches!(refused, RecordError::DuplicateKey { .. }), "{refused:?}");
    assert_eq!(test.fetch_all().await.len(), 1);
}

async fn a_connection_outside_of_a_transaction_is_refused(test: TestDb) {
    with_pool!(test, pool => {
        let mut connection = pool.acquire().await.unwrap();
        let refused = plain::record_with(&mut *connection, &test.config(), [Probe::noted("a", 1)]).await;
        assert!(matches!(refused, Err(RecordError::NoTransaction)), "{refused:?}");
    });
    assert_eq!(test.fetch_all().await.len(), 0);
}

/// PostgreSQL answers the commit of a failed transaction with a rollback, which sqlx itself reports as success.
async fn a_failed_transaction_of_sqlx_is_not_reported_as_committed(test: TestDb) {
    if test.sql_backend() != DbBackend::Postgres {
        return not_applicable("this database does not end a transaction after an error");
    }
    let mut tx = test.db.get_postgres_connection_pool().begin().await.unwrap();
    plain::record_with(&mut tx, &test.config(), [Probe::noted("a", 1)])
        .await
        .unwrap();
    tx.execute("SELECT nonsense").await.unwrap_err();
    plain::commit(tx).await.unwrap_err();
    assert_eq!(test.fetch_all().await.len(), 0);
}

/// MySQL ends a deadlock by undoing one of the transactions. What its caller writes afterwards must not be committed by itself.
#[tokio::test]
async fn a_record_of_sqlx_that_lost_a_deadlock_leaves_nothing() {
    let Some(test) = TestDb::open(Backend::MariaDb, "deadlock").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let (test, config) = (&shop.test, shop.test.config());
    let insert = format!(
        "INSERT INTO save_orders (marker, total_cents) VALUES ('{}', 1)",
        shop.marker
    );
    test.record([Probe::noted("a", 0), Probe::noted("b", 0)])
        .await
        .unwrap();
    let pool = test.db.get_mysql_connection_pool();
    let (mut a, mut b) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    plain::record_with(&mut a, &config, [Probe::noted("a", 1)])
        .await
        .unwrap();
    plain::record_with(&mut b, &config, [Probe::noted("b", 1)])
        .await
        .unwrap();
    let goes_on = async |mut tx: sea_orm::sqlx::Transaction<'static, sea_orm::sqlx::MySql>, aggregate| {
        let recorded = plain::record_with(&mut tx, &config, [Probe::noted(aggregate, 2)]).await;
        let written = tx
            .execute(sea_orm::sqlx::AssertSqlSafe(insert.clone()))
            .await
            .is_ok();
        let committed: Result<(), DbErr> = plain::commit(tx).await;
        (
            recorded.err().map(|error| error.is_conflict()),
            written,
            committed.is_ok(),
        )
    };
    let (of_a, of_b) = tokio::join!(goes_on(a, "b"), goes_on(b, "a"));
    let (lost, won) = if of_a.0.is_some() {
        (of_a, of_b)
    } else {
        (of_b, of_a)
    };
    assert_eq!(lost, (Some(true), false, false));
    assert_eq!(won, (None, true, true));
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 4));
}
