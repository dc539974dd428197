//! A transaction that the server rolled back stores nothing, even if the caller ignores the error.
//!
//! With `innodb_snapshot_isolation`, MariaDB rolls back after a write conflict (1020). On SQLite, a
//! trigger causes the rollback, as a full disk would.

use outbox_sea_orm::{OutboxTransaction, RecordError, SaveError, SaveWithEvents, Transactional, record};
use sea_orm::{ActiveModelTrait, ConnectionTrait, DbBackend, TransactionTrait};

use crate::shop::{Shop, placed};
use crate::support::{Backend, TestDb};

macro_rules! on_databases_that_commit_on {
    ($($name:ident),* $(,)?) => {
        on_databases_that_commit_on!(@module mariadb, MariaDb, [$($name),*]);
        on_databases_that_commit_on!(@module sqlite, Sqlite, [$($name),*]);
    };
    (@module $module:ident, $backend:ident, [$($name:ident),*]) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $name() {
                    if let Some(test) = TestDb::open(Backend::$backend, stringify!($name)).await {
                        let shop = super::Shop::open(test).await;
                        shop.test.execute(&super::rows(&shop)).await;
                        super::$name(shop).await;
                    }
                }
            )*
            use super::*;
        }
    };
}

on_databases_that_commit_on!(
    own_transaction_refuses_all_calls_after_a_rollback,
    joined_save_is_refused_after_a_rollback,
    rollback_by_a_direct_statement_is_detected,
    record_in_seaorms_transaction_is_refused,
    repeated_transaction_is_stored_once,
);

fn rows(shop: &Shop) -> String {
    let name = table(shop);
    match shop.test.sql_backend() {
        DbBackend::MySql => format!("CREATE TABLE {name} (id INT PRIMARY KEY, n INT) SELECT 1 AS id, 0 AS n"),
        _ => format!(
            "CREATE TABLE {name} (id INT PRIMARY KEY, n INT); INSERT INTO {name} VALUES (1, 0); \
             CREATE TRIGGER undo BEFORE UPDATE ON {name} WHEN NEW.n = 1 BEGIN SELECT RAISE(ROLLBACK, 'undone'); END"
        ),
    }
}

fn table(shop: &Shop) -> String {
    format!("undone_{}", shop.marker.replace('-', ""))
}

fn snapshot(shop: &Shop) -> Vec<String> {
    match shop.test.sql_backend() {
        DbBackend::MySql => vec![
            "SET SESSION innodb_snapshot_isolation = ON".to_owned(),
            format!("SELECT n FROM {}", table(shop)),
        ],
        _ => Vec::new(),
    }
}

async fn change_elsewhere(shop: &Shop) {
    if shop.test.sql_backend() == DbBackend::MySql {
        shop.test
            .execute(&format!("UPDATE {} SET n = n + 10", table(shop)))
            .await;
    }
}

fn undoing(shop: &Shop) -> String {
    format!("UPDATE {} SET n = 1", table(shop))
}

async fn undo(shop: &Shop, tx: &impl ConnectionTrait) {
    for sql in snapshot(shop) {
        tx.execute_unprepared(&sql).await.unwrap();
    }
    change_elsewhere(shop).await;
    tx.execute_unprepared(&undoing(shop)).await.unwrap_err();
}

async fn begin(shop: &Shop) -> OutboxTransaction {
    let tx = shop.test.outbox().begin().await.unwrap();
    shop.order(1)
        .insert_with_events(&tx, |_| [placed(1)])
        .await
        .unwrap();
    tx
}

async fn nothing_is_stored(shop: &Shop) {
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
    let outbox = shop.test.outbox();
    for _ in 0..8 {
        let save = shop.order(3).insert_with_events(&outbox, |_| [placed(3)]);
        save.await.unwrap();
    }
    let numbers: Vec<_> = shop
        .recorded()
        .await
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    assert_eq!(numbers, (1..=8).map(Some).collect::<Vec<_>>());
    assert_eq!(shop.orders().await, 8);
}

async fn own_transaction_refuses_all_calls_after_a_rollback(shop: Shop) {
    let tx = begin(&shop).await;
    undo(&shop, &tx).await;
    shop.order(2).insert(&tx).await.unwrap_err();
    let recorded = record(&tx, [placed(2)]).await;
    assert!(
        matches!(recorded, Err(RecordError::TransactionLost(_))),
        "{recorded:?}"
    );
    tx.begin().await.unwrap_err();
    tx.commit().await.unwrap_err();
    nothing_is_stored(&shop).await;
}

async fn joined_save_is_refused_after_a_rollback(shop: Shop) {
    let tx = begin(&shop).await;
    let nested = tx.begin().await.unwrap();
    undo(&shop, &nested).await;
    let saved = shop.order(2).insert_with_events(&nested, |_| [placed(2)]).await;
    assert!(matches!(saved, Err(SaveError::TransactionLost(_))), "{saved:?}");
    let _ = nested.rollback().await;
    let saved = shop.order(2).insert_with_events(&tx, |_| [placed(2)]).await;
    assert!(matches!(saved, Err(SaveError::TransactionLost(_))), "{saved:?}");
    tx.commit().await.unwrap_err();
    nothing_is_stored(&shop).await;
}

async fn rollback_by_a_direct_statement_is_detected(shop: Shop) {
    let tx = begin(&shop).await;
    undo(&shop, &*tx).await;
    shop.order(2).insert(&tx).await.unwrap_err();
    tx.commit().await.unwrap_err();

    let tx = begin(&shop).await;
    undo(&shop, &*tx).await;
    let saved = shop.order(2).insert_with_events(&tx, |_| [placed(2)]).await;
    assert!(matches!(saved, Err(SaveError::TransactionLost(_))), "{saved:?}");
    drop(tx);
    nothing_is_stored(&shop).await;
}

/// SeaORM's transaction has no state of this crate, so each record first checks the server.
async fn record_in_seaorms_transaction_is_refused(shop: Shop) {
    let tx = shop.test.db.begin().await.unwrap();
    let named = Named(&tx, shop.test.config());
    record(&named, [placed(1)]).await.unwrap();
    undo(&shop, &tx).await;
    let recorded = record(&named, [placed(2)]).await;
    assert!(
        matches!(recorded, Err(RecordError::TransactionLost(_))),
        "{recorded:?}"
    );
    let _ = shop.order(2).insert(&tx).await;
    tx.commit().await.unwrap_err();
    nothing_is_stored(&shop).await;
}

struct Named<'t>(&'t sea_orm::DatabaseTransaction, outbox_sea_orm::OutboxConfig);

impl Transactional for Named<'_> {
    fn transaction(&self) -> &sea_orm::DatabaseTransaction {
        self.0
    }

    fn config(&self) -> &outbox_sea_orm::OutboxConfig {
        &self.1
    }
}

async fn repeated_transaction_is_stored_once(shop: Shop) {
    if shop.test.sql_backend() == DbBackend::Sqlite {
        return outbox_testing::not_applicable("a trigger is no conflict");
    }
    let (shop, attempts) = (&shop, &std::sync::atomic::AtomicU32::new(0));
    let done: Result<(), SaveError> = shop
        .test
        .outbox()
        .transaction(async move |tx| {
            shop.order(1).insert_with_events(&tx, |_| [placed(1)]).await?;
            if attempts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
                undo(shop, &tx).await;
            }
            let _ = shop.order(2).insert(&tx).await;
            Ok(())
        })
        .await;
    done.unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (2, 1));
}
