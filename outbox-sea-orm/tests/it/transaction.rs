//! Saves that end with a panic, an ignored error, a database error or a dropped caller.

use std::future::Future;
use std::pin::pin;
use std::task::Context;

use outbox_sea_orm::{SaveError, SaveWithEvents};
use outbox_testing::{eventually, not_applicable};
use sea_orm::{ActiveModelTrait, ConnectionTrait, DbBackend, TransactionTrait};

use crate::on_every_backend;
use crate::shop::{OrderPlaced, Shop, placed};
use crate::support::{Backend, TestDb};

on_every_backend!(
    panicking_closure_stores_nothing,
    ignored_error_is_not_reported_as_a_commit,
    nested_transaction_records_into_the_outer_tables,
    a_partition_that_does_not_exist_cannot_be_stored,
    session_lost_in_the_commit_has_an_unknown_outcome,
);

async fn panicking_closure_stores_nothing(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let order = shop.order(1);
    let save = async move {
        order
            .insert_with_events(&outbox, |_| -> [OrderPlaced; 1] {
                panic!("the test's own panic")
            })
            .await
    };
    assert!(tokio::spawn(save).await.unwrap_err().is_panic());
    assert_eq!(shop.orders().await, 0);
    assert_eq!(shop.recorded().await, []);
}

/// After an ignored error, PostgreSQL rolls back, and sqlx reports success. Other databases commit
/// the successful statements.
async fn ignored_error_is_not_reported_as_a_commit(db: TestDb) {
    let shop = Shop::open(db).await;
    let tx = shop.test.outbox().begin().await.unwrap();
    shop.order(1)
        .insert_with_events(&tx, |_| [placed(1)])
        .await
        .unwrap();
    tx.execute_unprepared("SELECT nonsense").await.unwrap_err();
    let committed = tx.commit().await.is_ok();
    assert_eq!(committed, shop.test.sql_backend() != DbBackend::Postgres);
    assert_eq!(shop.orders().await, i64::from(committed));
    assert_eq!(shop.recorded().await.len(), usize::from(committed));
}

async fn nested_transaction_records_into_the_outer_tables(db: TestDb) {
    let shop = Shop::open(db).await;
    let placed = |total_cents| {
        [OrderPlaced {
            order_id: 1,
            total_cents,
        }]
    };
    let outer = shop.test.outbox().begin().await.unwrap();
    let undone = outer.begin().await.unwrap();
    outbox_sea_orm::record(&undone, placed(1)).await.unwrap();
    undone.rollback().await.unwrap();
    let kept = outer.begin().await.unwrap();
    shop.order(1).insert(&kept).await.unwrap();
    outbox_sea_orm::record(&kept, placed(2)).await.unwrap();
    kept.commit().await.unwrap();
    outer.commit().await.unwrap();
    assert_eq!(shop.orders().await, 1);
    assert_eq!(shop.recorded().await, [("order.placed".to_owned(), Some(1))]);
}

async fn a_partition_that_does_not_exist_cannot_be_stored(db: TestDb) {
    let shop = Shop::open(db).await;
    shop.order(1)
        .insert_with_events(&shop.test.outbox(), |_| [placed(1)])
        .await
        .unwrap();
    for partition in [-1, 64] {
        let sql = format!("UPDATE {} SET partition_no = {partition}", shop.test.messages());
        assert!(
            shop.test.db.execute_unprepared(&sql).await.is_err(),
            "{partition}"
        );
    }
}

async fn session_lost_in_the_commit_has_an_unknown_outcome(db: TestDb) {
    let shop = Shop::open(db).await;
    if shop.test.backend != Backend::Postgres {
        return not_applicable("only PostgreSQL has a trigger that can end the session in the commit");
    }
    let end = shop.test.names.table(DbBackend::Postgres, "end_session");
    let body = "BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NULL; END";
    let create = format!("CREATE FUNCTION {end}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$");
    shop.test.execute(&create).await;
    let messages = shop.test.messages();
    let at_commit = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW";
    shop.test
        .execute(&format!(
            "CREATE CONSTRAINT TRIGGER end_session AFTER INSERT ON {messages} {at_commit} EXECUTE FUNCTION {end}()"
        ))
        .await;
    let outbox = shop.test.outbox();
    let error = shop
        .order(1)
        .insert_with_events(&outbox, |_| [placed(1)])
        .await
        .unwrap_err();
    assert!(matches!(error, SaveError::CommitUnknown(_)), "{error:?}");
    shop.test
        .execute(&format!("DROP TRIGGER end_session ON {messages}"))
        .await;
    shop.order(1)
        .insert_with_events(&outbox, |_| [placed(1)])
        .await
        .unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}

async fn check_dropped_saves(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    for polls in 0..6 {
        let events = [OrderPlaced {
            order_id: 1,
            total_cents: 1,
        }];
        let mut save = pin!(shop.order(polls).insert_with_events(&outbox, |_| events));
        for _ in 0..polls {
            if save
                .as_mut()
                .poll(&mut Context::from_waker(std::task::Waker::noop()))
                .is_ready()
            {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let tx = shop.test.db.begin().await.unwrap();
    tx.commit().await.unwrap();
    for n in 0..50 {
        let events = [OrderPlaced {
            order_id: 2,
            total_cents: n,
        }];
        shop.order(n)
            .insert_with_events(&outbox, |_| events)
            .await
            .unwrap();
    }
    let mut acknowledged = 0;
    // A dropped save may commit after the events and before the orders are counted.
    eventually(
        "an order for each event, and an event for each order",
        async || {
            acknowledged = shop.recorded().await.len() as i64;
            shop.orders().await == acknowledged
        },
    )
    .await;
    assert!((50..=56).contains(&acknowledged), "{acknowledged}");
}

mod dropped {
    use super::check_dropped_saves as a_dropped_save_is_whole_and_leaves_the_pool_healthy;
    crate::on_every_backend!(a_dropped_save_is_whole_and_leaves_the_pool_healthy);
}
