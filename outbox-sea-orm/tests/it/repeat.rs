//! Only transactions that lost against a concurrent transaction are repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_sea_orm::{ErrorKind, OpenTransaction, OutboxConnection, SaveError, SaveWithEvents, record};
use outbox_testing::not_applicable;
use sea_orm::{
    AccessMode, ActiveModelTrait, ColumnTrait, ConnectionTrait, DbBackend, EntityTrait, IsolationLevel,
    PaginatorTrait, QueryFilter, TransactionOptions,
};
use tokio::sync::Barrier;

use crate::commit::behind_a_proxy;
use crate::on_every_backend;
use crate::proxy::Commit;
use crate::shop::{Shop, order, placed};
use crate::support::{Backend, TestDb};

on_every_backend!(
    transaction_commits_the_work_of_its_closure,
    closure_error_is_returned_at_once_and_stores_nothing,
    a_panic_of_the_closure_rolls_back,
    a_transaction_that_outlives_its_closure_is_not_committed,
    read_only_transaction_waits_for_no_writer,
    deadlocked_transactions_repeat_until_both_commit,
    last_error_is_returned_after_all_attempts,
    ignored_conflict_is_repeated_and_never_stored_in_part,
);

#[derive(Debug, PartialEq)]
enum ShopError {
    SoldOut,
    Database(ErrorKind),
}

impl From<SaveError> for ShopError {
    fn from(error: SaveError) -> Self {
        Self::Database(error.kind())
    }
}

impl From<sea_orm::DbErr> for ShopError {
    fn from(error: sea_orm::DbErr) -> Self {
        Self::Database(ErrorKind::of(&error))
    }
}

async fn transaction_commits_the_work_of_its_closure(db: TestDb) {
    let shop = Shop::open(db).await;
    let (outbox, order) = (shop.test.outbox(), shop.order(1));
    let save = tokio::spawn(async move {
        outbox
            .transaction(async |tx| {
                let saved = order
                    .clone()
                    .insert_with_events(&tx, |order| [placed(order.id)])
                    .await?;
                let nested = tx.begin().await?;
                record(&nested, [placed(saved.id)]).await?;
                nested.commit().await?;
                Ok::<_, SaveError>(saved.total_cents)
            })
            .await
    });
    assert_eq!(save.await.unwrap().unwrap(), 1);
    assert_eq!(shop.orders().await, 1);
    assert_eq!(shop.recorded().await.len(), 2);
}

async fn closure_error_is_returned_at_once_and_stores_nothing(db: TestDb) {
    let shop = Shop::open(db).await;
    let mut attempts = 0;
    let order = shop.order(1);
    let outcome: Result<(), ShopError> = shop
        .test
        .outbox()
        .transaction(|tx| {
            attempts += 1;
            let order = order.clone();
            async move {
                order.insert_with_events(&tx, |order| [placed(order.id)]).await?;
                Err(ShopError::SoldOut)
            }
        })
        .await;
    assert_eq!((outcome, attempts), (Err(ShopError::SoldOut), 1));
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

async fn a_panic_of_the_closure_rolls_back(db: TestDb) {
    let shop = Shop::open(db).await;
    let (outbox, order) = (shop.test.outbox(), shop.order(1));
    let save = async move {
        outbox
            .transaction(async |tx| {
                order
                    .clone()
                    .insert_with_events(&tx, |order| [placed(order.id)])
                    .await?;
                if order.id.is_not_set() {
                    panic!("the test's own panic");
                }
                Ok::<_, SaveError>(())
            })
            .await
    };
    assert!(tokio::spawn(save).await.unwrap_err().is_panic());
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

async fn a_transaction_that_outlives_its_closure_is_not_committed(db: TestDb) {
    let shop = Shop::open(db).await;
    let order = shop.order(1);
    let outcome: Result<OpenTransaction, SaveError> = shop
        .test
        .outbox()
        .transaction(async |tx| {
            order.clone().insert(&tx).await?;
            Ok(tx)
        })
        .await;
    assert!(matches!(outcome, Err(SaveError::Database(_))), "{outcome:?}");
    assert_eq!(shop.orders().await, 0);
}

async fn read_only_transaction_waits_for_no_writer(db: TestDb) {
    let shop = Shop::open(db).await;
    if shop.test.backend == Backend::SqliteMemory {
        return not_applicable("a database in memory has one connection");
    }
    let reads = TransactionOptions {
        access_mode: Some(AccessMode::ReadOnly),
        ..TransactionOptions::default()
    };
    let (outbox, writer) = (shop.test.outbox(), shop.test.outbox().begin().await.unwrap());
    shop.order(1).insert(&writer).await.unwrap();
    let found = outbox
        .transaction_with(reads, async |tx| {
            Ok::<_, ShopError>(order::Entity::find().count(&tx).await?)
        })
        .await;
    writer.rollback().await.unwrap();
    assert!(found.is_ok(), "{found:?}");
    if shop.test.sql_backend() == DbBackend::Sqlite {
        return;
    }
    let mut attempts = 0;
    let order = shop.order(1);
    let outcome: Result<(), ShopError> = outbox
        .transaction_with(reads, |tx| {
            attempts += 1;
            let order = order.clone();
            async move {
                order.insert_with_events(&tx, |order| [placed(order.id)]).await?;
                Ok(())
            }
        })
        .await;
    assert!(matches!(outcome, Err(ShopError::Database(_))), "{outcome:?}");
    assert_eq!(
        (attempts, shop.orders().await, shop.recorded().await.len()),
        (1, 0, 0)
    );
}

async fn add(
    outbox: OutboxConnection,
    [first, second]: [i32; 2],
    met: Arc<Barrier>,
) -> Result<u32, ShopError> {
    let attempts = AtomicU32::new(0);
    outbox
        .transaction(async |tx| {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            if tx.get_database_backend() == DbBackend::Postgres {
                tx.execute_unprepared("SET LOCAL deadlock_timeout = '20ms'")
                    .await?;
            }
            for (n, id) in [first, second].into_iter().enumerate() {
                tx.execute_unprepared(&format!(
                    "UPDATE save_orders SET total_cents = total_cents + 1 WHERE id = {id}"
                ))
                .await?;
                if (attempt, n) == (0, 0) {
                    met.wait().await;
                }
            }
            record(&tx, [placed(first)]).await.map_err(SaveError::from)?;
            Ok::<_, ShopError>(())
        })
        .await?;
    Ok(attempts.into_inner())
}

async fn deadlocked_transactions_repeat_until_both_commit(db: TestDb) {
    let shop = Shop::open(db).await;
    if shop.test.sql_backend() == DbBackend::Sqlite {
        return not_applicable("SQLite has one writer at a time");
    }
    let (a, b) = (shop.order(0), shop.order(0));
    let (a, b) = (
        a.insert(&shop.test.db).await.unwrap().id,
        b.insert(&shop.test.db).await.unwrap().id,
    );
    let met = Arc::new(Barrier::new(2));
    let one = tokio::spawn(add(shop.test.outbox(), [a, b], met.clone()));
    let other = tokio::spawn(add(shop.test.outbox(), [b, a], met));
    let attempts = one.await.unwrap().unwrap() + other.await.unwrap().unwrap();
    assert!(attempts >= 3, "{attempts}");
    for id in [a, b] {
        let order = order::Entity::find_by_id(id).one(&shop.test.db).await.unwrap();
        assert_eq!(order.unwrap().total_cents, 2);
    }
    assert_eq!(shop.recorded().await.len(), 2);
}

async fn lose(tx: &OpenTransaction) -> Result<(), sea_orm::DbErr> {
    let sql = match tx.get_database_backend() {
        DbBackend::Postgres => "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$",
        _ => "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205",
    };
    tx.execute_unprepared(sql).await.map(drop)
}

async fn last_error_is_returned_after_all_attempts(db: TestDb) {
    let shop = Shop::open(db).await;
    if shop.test.sql_backend() == DbBackend::Sqlite {
        return not_applicable("no statement of SQLite fails so at will");
    }
    let mut attempts = 0;
    let order = shop.order(1);
    let outcome: Result<(), ShopError> = shop
        .test
        .outbox()
        .transaction(|tx| {
            attempts += 1;
            let order = order.clone();
            async move {
                order.insert_with_events(&tx, |order| [placed(order.id)]).await?;
                lose(&tx).await?;
                Ok(())
            }
        })
        .await;
    assert_eq!(outcome, Err(ShopError::Database(ErrorKind::Conflict)));
    assert_eq!(attempts, 5);
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

/// After the conflict, PostgreSQL has aborted the transaction. Other databases have aborted only
/// the statement.
async fn ignored_conflict_is_repeated_and_never_stored_in_part(db: TestDb) {
    let shop = Shop::open(db).await;
    if shop.test.sql_backend() == DbBackend::Sqlite {
        return not_applicable("no statement of SQLite fails so at will");
    }
    let mut attempts = 0;
    let order = shop.order(1);
    let outcome: Result<(), SaveError> = shop
        .test
        .outbox()
        .transaction(|tx| {
            attempts += 1;
            let (order, loses) = (order.clone(), attempts == 1);
            async move {
                order.insert_with_events(&tx, |order| [placed(order.id)]).await?;
                if loses {
                    drop(lose(&tx).await);
                }
                Ok(())
            }
        })
        .await;
    outcome.unwrap();
    assert_eq!(
        attempts,
        if shop.test.sql_backend() == DbBackend::Postgres {
            2
        } else {
            1
        }
    );
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_repeated_after_conflict_sees_other_commit() {
    let Some(test) = TestDb::open(Backend::Postgres, "serialization").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let (met, attempts) = (Arc::new(Barrier::new(2)), Arc::new(AtomicU32::new(0)));
    let insert_one = |order: order::ActiveModel| {
        let (outbox, met, attempts) = (shop.test.outbox(), met.clone(), attempts.clone());
        let options = TransactionOptions {
            isolation_level: Some(IsolationLevel::Serializable),
            ..TransactionOptions::default()
        };
        tokio::spawn(async move {
            let first = AtomicU32::new(0);
            outbox
                .transaction_with(options, async |tx| {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    let marker = order.marker.clone().unwrap();
                    let count = order::Entity::find()
                        .filter(order::Column::Marker.eq(marker))
                        .count(&tx)
                        .await?;
                    if first.fetch_add(1, Ordering::Relaxed) == 0 {
                        met.wait().await;
                    }
                    if count == 0 {
                        order
                            .clone()
                            .insert_with_events(&tx, |order| [placed(order.id)])
                            .await?;
                    }
                    Ok::<_, SaveError>(())
                })
                .await
        })
    };
    let (one, other) = (insert_one(shop.order(1)), insert_one(shop.order(1)));
    one.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
    assert!(attempts.load(Ordering::Relaxed) >= 3);
}

#[tokio::test]
async fn commit_with_a_lost_answer_is_not_repeated() {
    for backend in [Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::open(backend, "lost_commit").await else {
            continue;
        };
        let shop = Shop::open(test).await;
        let (proxy, outbox) = behind_a_proxy(&shop.test).await;
        proxy.on_commit(Commit::LoseAnswer);
        let mut attempts = 0;
        let order = shop.order(1);
        let outcome: Result<(), SaveError> = outbox
            .transaction(|tx| {
                attempts += 1;
                let order = order.clone();
                async move {
                    order.insert_with_events(&tx, |order| [placed(order.id)]).await?;
                    Ok(())
                }
            })
            .await;
        let error = outcome.unwrap_err();
        assert_eq!(
            (error.kind(), error.is_retryable()),
            (ErrorKind::CommitUnknown, false)
        );
        assert_eq!(
            (attempts, shop.orders().await, shop.recorded().await.len()),
            (1, 1, 1)
        );
    }
}
