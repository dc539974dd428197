//! Many rows that the database stores otherwise than their models say, or cannot take: none of them is left without its event.

use outbox_sea_orm::{SaveError, SaveManyWithEvents};
use sea_orm::EntityTrait;
use sea_orm::sea_query::Expr;
use sea_orm::{ActiveModelTrait, ColumnTrait, IntoActiveModel, Set};
use sea_orm::{IsolationLevel, QueryFilter, TransactionOptions};

use crate::shop::{OrderPlaced, Shop, order};
use crate::support::{Backend, TestDb};

const MIB: usize = 1024 * 1024;

fn placed(order: &order::Model) -> [OrderPlaced; 1] {
    [OrderPlaced {
        order_id: order.id,
        total_cents: order.total_cents,
    }]
}

/// MariaDB takes the key 0 of a model for "the next one".
#[tokio::test]
async fn a_row_whose_key_the_database_has_changed_is_not_left_without_its_event() {
    let Some(test) = TestDb::open(Backend::MariaDb, "changed_key").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let order = order::ActiveModel {
        id: Set(0),
        ..shop.order(1)
    };
    let saved = order::Entity::insert_many_with_events([order], &shop.test.outbox(), placed).await;
    assert!(matches!(saved, Err(SaveError::Unsupported { .. })), "{saved:?}");
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

/// At REPEATABLE READ, MariaDB shows a row that an update has left as it was in the snapshot of the transaction.
#[tokio::test]
async fn an_update_that_changes_nothing_makes_an_event_of_the_row_as_it_is_now() {
    let Some(test) = TestDb::open(Backend::MariaDb, "unchanged").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let old = shop.order(1).insert(&shop.test.db).await.unwrap();
    let options = TransactionOptions {
        isolation_level: Some(IsolationLevel::RepeatableRead),
        ..Default::default()
    };
    let tx = shop.test.outbox().begin_with(options).await.unwrap();
    let seen = order::Entity::find_by_id(old.id).one(&tx).await.unwrap();
    assert_eq!(seen.as_ref(), Some(&old));
    let mut dearer = old.clone().into_active_model();
    dearer.total_cents = Set(2);
    dearer.update(&shop.test.db).await.unwrap();
    let same = order::Entity::update_many().col_expr(order::Column::Marker, Expr::value(&*shop.marker));
    let updated = order::Entity::update_many_with_events(same, order::Column::Id.eq(old.id), &tx, |order| {
        assert_eq!(order.total_cents, 2, "the row as it is stored now");
        placed(order)
    });
    assert_eq!(updated.await.unwrap(), 1);
    tx.commit().await.unwrap();
    assert_eq!(shop.recorded().await.len(), 1);
}

/// If it were sent, the server would end the connection, and with it everything before it in the transaction.
#[tokio::test]
async fn many_rows_that_the_database_cannot_take_do_not_lose_the_transaction() {
    let Some(test) = TestDb::open(Backend::MariaDb, "large_models").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let tx = shop.test.outbox().begin().await.unwrap();
    let saved = order::Entity::insert_many_with_events([shop.order(1)], &tx, placed).await;
    let id = saved.unwrap()[0].id;
    let large = || order::ActiveModel {
        marker: Set("x".repeat(17 * MIB)),
        ..shop.order(2)
    };
    let models = [shop.order(2), large()];
    let inserted = order::Entity::insert_many_with_events(models, &tx, placed).await;
    let change = order::Entity::update_many().set(large());
    let updated = order::Entity::update_many_with_events(change, order::Column::Id.eq(id), &tx, placed).await;
    tx.commit().await.unwrap();
    for outcome in [inserted.map(drop), updated.map(drop)] {
        let Err(SaveError::RowTooLarge { limit_bytes, .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(limit_bytes > 15 * MIB, "{limit_bytes}");
    }
    let stored = order::Entity::find().filter(order::Column::Id.eq(id));
    assert!(stored.one(&shop.test.db).await.unwrap().is_some());
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}
