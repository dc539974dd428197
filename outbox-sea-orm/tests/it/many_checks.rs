//! Many rows that the database stores otherwise than their models say, or cannot take: none of them is left without its event.

use outbox_sea_orm::{SaveError, SaveManyWithEvents};
use sea_orm::EntityTrait;
use sea_orm::sea_query::Expr;
use sea_orm::{ActiveModelTrait, ColumnTrait, ConnectionTrait, DbBackend, IntoActiveModel, Set};
use sea_orm::{IsolationLevel, QueryFilter, TransactionOptions};

use crate::on_every_backend;
use crate::shop::{OrderPlaced, Shop, order, placed_of};
use crate::support::{Backend, TestDb};

on_every_backend!(
    padded_keys_are_updated_and_deleted,
    rows_that_are_not_written_are_an_error
);

const MIB: usize = 1024 * 1024;

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
    let saved = order::Entity::insert_many_with_events([order], &shop.test.outbox(), placed_of).await;
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
        placed_of(order)
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
    let saved = order::Entity::insert_many_with_events([shop.order(1)], &tx, placed_of).await;
    let id = saved.unwrap()[0].id;
    let large = || order::ActiveModel {
        marker: Set("x".repeat(17 * MIB)),
        ..shop.order(2)
    };
    let models = [shop.order(2), large()];
    let inserted = order::Entity::insert_many_with_events(models, &tx, placed_of).await;
    let change = order::Entity::update_many().set(large());
    let updated =
        order::Entity::update_many_with_events(change, order::Column::Id.eq(id), &tx, placed_of).await;
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

/// A key of the type CHAR(n), which PostgreSQL returns with spaces at its end.
mod parcel {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "many_parcels")]
    pub(super) struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub code: String,
        pub marker: String,
        pub weight: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// The same as a part of a key.
mod item {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "many_items")]
    pub(super) struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub code: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub marker: String,
        pub weight: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

const CODES: [&str; 3] = ["a", "a b", "abcdef"];

async fn padded_keys_are_updated_and_deleted(test: TestDb) {
    let shop = Shop::open(test).await;
    let outbox = shop.test.outbox();
    for sql in [
        "CREATE TABLE IF NOT EXISTS many_parcels (code CHAR(44) PRIMARY KEY, marker VARCHAR(60), weight INTEGER)",
        "CREATE TABLE IF NOT EXISTS many_items (code CHAR(8), marker CHAR(50), weight INTEGER, PRIMARY KEY (code, marker))",
    ] {
        // If two sessions create a table at once, one may fail in PostgreSQL's catalogue; then the table exists.
        if shop.test.db.execute_unprepared(sql).await.is_err() {
            shop.test.execute(sql).await;
        }
    }
    let event = |weight: i32| {
        [OrderPlaced {
            order_id: 1,
            total_cents: weight.into(),
        }]
    };
    for code in CODES {
        let marker = Set(shop.marker.clone());
        let parcel = parcel::ActiveModel {
            code: Set(format!("{code}{}", &shop.marker[..30])),
            marker: marker.clone(),
            weight: Set(1),
        };
        parcel.insert(&shop.test.db).await.unwrap();
        let item = item::ActiveModel {
            code: Set(code.to_owned()),
            marker,
            weight: Set(1),
        };
        item.insert(&shop.test.db).await.unwrap();
    }
    let change = parcel::Entity::update_many().col_expr(parcel::Column::Weight, Expr::value(2));
    let mine = parcel::Column::Marker.eq(&*shop.marker);
    let changed = parcel::Entity::update_many_with_events(change, mine.clone(), &outbox, move |parcel| {
        event(parcel.weight)
    });
    assert_eq!(changed.await.unwrap(), 3);
    let gone = parcel::Entity::delete_many_with_events(mine, &outbox, move |parcel| event(parcel.weight));
    assert_eq!(gone.await.unwrap(), 3);

    let change = item::Entity::update_many().col_expr(item::Column::Weight, Expr::value(2));
    let mine = item::Column::Marker.like(format!("{}%", shop.marker));
    let changed =
        item::Entity::update_many_with_events(change, mine.clone(), &outbox, move |item| event(item.weight));
    assert_eq!(changed.await.unwrap(), 3);
    let gone = item::Entity::delete_many_with_events(mine, &outbox, move |item| event(item.weight));
    assert_eq!(gone.await.unwrap(), 3);
    assert_eq!(shop.recorded().await.len(), 12);
}

/// A trigger leaves a row alone, or the changes have a filter: the rows that are locked are not all written.
async fn rows_that_are_not_written_are_an_error(test: TestDb) {
    let shop = Shop::open(test).await;
    for cents in [1, 2] {
        shop.order(cents).insert(&shop.test.db).await.unwrap();
    }
    let change = order::Entity::update_many()
        .col_expr(order::Column::TotalCents, Expr::value(9))
        .filter(order::Column::TotalCents.eq(1));
    let mine = order::Column::Marker.eq(&*shop.marker);
    let updated = order::Entity::update_many_with_events(change, mine, &shop.test.outbox(), placed_of).await;
    match updated {
        Err(SaveError::RowsNotWritten {
            locked: 2,
            written: 1,
            ..
        }) => {}
        // MySQL and MariaDB do not return what they have written.
        Err(SaveError::Unsupported { .. }) if shop.test.sql_backend() == DbBackend::MySql => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(shop.recorded().await.len(), 0);
}
