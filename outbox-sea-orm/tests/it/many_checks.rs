//! Rows that the database changes or cannot store are refused with their events.

use outbox_sea_orm::{SaveError, SaveManyWithEvents};
use sea_orm::{EntityTrait, Set};

use crate::shop::{Shop, order, placed_of};
use crate::support::{Backend, TestDb};

const MIB: usize = 1024 * 1024;

/// MariaDB replaces key 0 by the next one.
#[tokio::test]
async fn row_with_a_changed_key_is_refused() {
    let Some(test) = TestDb::open(Backend::MariaDb, "changed_key").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let order = order::ActiveModel {
        id: Set(0),
        ..shop.order(1)
    };
    let saved = order::Entity::insert_many_with_events([order], &shop.test.outbox(), placed_of).await;
    assert!(matches!(saved, Err(SaveError::Unsupported { .. })), "{saved:?}");
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

#[tokio::test]
async fn oversized_rows_do_not_lose_the_transaction() {
    let Some(test) = TestDb::open(Backend::MariaDb, "large_models").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let tx = shop.test.outbox().begin().await.unwrap();
    let saved = order::Entity::insert_many_with_events([shop.order(1)], &tx, placed_of).await;
    let id = saved.unwrap()[0].id;
    let large = order::ActiveModel {
        marker: Set("x".repeat(17 * MIB)),
        ..shop.order(2)
    };
    let models = [shop.order(2), large];
    let inserted = order::Entity::insert_many_with_events(models, &tx, placed_of).await;
    tx.commit().await.unwrap();
    let Err(SaveError::RowTooLarge { limit_bytes, .. }) = inserted else {
        panic!("{inserted:?}");
    };
    assert!(limit_bytes > 15 * MIB, "{limit_bytes}");
    let stored = order::Entity::find_by_id(id);
    assert!(stored.one(&shop.test.db).await.unwrap().is_some());
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}
