//! If the database changes an inserted row, the save is refused, with its events.

use outbox_sea_orm::{SaveError, SaveManyWithEvents};
use sea_orm::Set;

use crate::shop::{Shop, order, placed_of};
use crate::support::{Backend, TestDb};

/// MariaDB replaces the key 0 by the next free key.
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
