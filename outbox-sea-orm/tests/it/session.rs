//! Code generic over SeaORM's traits, and error classes.

use outbox_sea_orm::{AggregateRoot, ErrorKind, OutboxTransaction, SaveError, SaveWithEvents, record};
use outbox_testing::not_applicable;
use sea_orm::{
    AccessMode, ActiveModelTrait, ColumnTrait, ConnectionTrait, DbBackend, DbErr, EntityTrait,
    IsolationLevel, PaginatorTrait, QueryFilter, Select, Set, TransactionOptions, TransactionSession,
    TransactionTrait,
};

use crate::on_every_backend;
use crate::shop::{CustomerGreeted, OrderPlaced, Shop, order, placed};
use crate::support::TestDb;

on_every_backend!(
    trait_transactions_record_into_the_configured_tables,
    an_aggregate_root_with_nested_models_is_saved_in_one_call,
    transaction_has_the_requested_isolation_level,
    errors_have_the_kind_of_their_cause,
);

fn orders_of(marker: &str) -> Select<order::Entity> {
    order::Entity::find().filter(order::Column::Marker.eq(marker))
}

async fn in_a_transaction<D>(db: &D) -> Result<(), DbErr>
where
    D: TransactionTrait<Transaction = OutboxTransaction>,
{
    let failed = |error: outbox_sea_orm::RecordError| DbErr::Custom(error.to_string());
    let tx = db.begin_with_config(None, None).await?;
    record(&tx, [placed(1)]).await.map_err(failed)?;
    TransactionSession::commit(tx).await?;
    let tx = db.begin_with_options(TransactionOptions::default()).await?;
    record(&tx, [placed(1)]).await.map_err(failed)?;
    TransactionSession::commit(tx).await?;
    let saved = db
        .transaction(|tx| Box::pin(async move { record(tx, [placed(1)]).await.map(drop) }))
        .await;
    saved.map_err(|error| DbErr::Custom(error.to_string()))
}

async fn trait_transactions_record_into_the_configured_tables(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    in_a_transaction(&outbox).await.unwrap();
    assert_eq!(shop.recorded().await.len(), 3);
    let tx = outbox.begin().await.unwrap();
    in_a_transaction(&tx).await.unwrap();
    let refused = tx
        .begin_with_config(Some(IsolationLevel::Serializable), None)
        .await;
    assert!(matches!(refused, Err(DbErr::Custom(_))));
    tx.commit().await.unwrap();
    let through_closure: Result<(), SaveError> = outbox
        .transaction(async |tx| Ok(in_a_transaction(&tx).await?))
        .await;
    through_closure.unwrap();
    assert_eq!(shop.recorded().await.len(), 9);
}

mod basket {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "save_baskets")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub marker: String,
        #[sea_orm(has_many)]
        pub items: HasMany<super::article::Entity>,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

mod article {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "save_items")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub basket_id: i32,
        pub name: String,
        #[sea_orm(belongs_to, from = "basket_id", to = "id")]
        pub basket: BelongsTo<super::basket::Entity>,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

async fn create_baskets(db: &impl ConnectionTrait) {
    let key = match db.get_database_backend() {
        DbBackend::Postgres => "SERIAL PRIMARY KEY",
        DbBackend::MySql => "INTEGER PRIMARY KEY AUTO_INCREMENT",
        _ => "INTEGER PRIMARY KEY AUTOINCREMENT",
    };
    for sql in [
        format!("CREATE TABLE IF NOT EXISTS save_baskets (id {key}, marker VARCHAR(60))"),
        format!(
            "CREATE TABLE IF NOT EXISTS save_items (id {key}, basket_id INTEGER NOT NULL, name VARCHAR(60))"
        ),
    ] {
        if db.execute_unprepared(&sql).await.is_err() {
            db.execute_unprepared(&sql).await.unwrap();
        }
    }
}

fn sum_of_ids(basket: &basket::ModelEx) -> i64 {
    basket.items.iter().map(|item| i64::from(item.id)).sum()
}

async fn an_aggregate_root_with_nested_models_is_saved_in_one_call(db: TestDb) {
    let shop = Shop::open(db).await;
    create_baskets(&shop.test.db).await;
    let outbox = shop.test.outbox();
    let basket = |items: &[&str]| {
        let empty = basket::ActiveModel::builder().set_marker(shop.marker.clone());
        let items = items
            .iter()
            .map(|name| article::ActiveModel::builder().set_name(*name));
        let mut root = AggregateRoot::nested(items.fold(empty, |basket, item| basket.add_item(item)));
        root.raise_with(|basket| {
            [OrderPlaced {
                order_id: basket.id,
                total_cents: sum_of_ids(basket),
            }]
        });
        root
    };
    let mut changed = basket(&["chai"]);
    changed.marker = Set(shop.marker.clone());
    let saved = changed
        .save_by(&outbox, |basket, tx| Box::pin(basket.insert(tx)))
        .await;
    let first = saved.unwrap();
    let tx = outbox.begin().await.unwrap();
    let saved = basket(&["chang", "konbu"]).save_by(&tx, |basket, tx| Box::pin(basket.insert(tx)));
    let second = saved.await.unwrap();
    let refused = basket(&["tofu"]).save_by(&tx, |basket, tx| {
        Box::pin(async move {
            basket.insert(tx).await?;
            Err(DbErr::Custom("refused".to_owned()))
        })
    });
    assert!(matches!(refused.await, Err(SaveError::Database(_))));
    tx.commit().await.unwrap();

    let recorded =
        outbox_sea_orm::testing::recorded_events_in::<OrderPlaced>(&shop.test.db, &shop.test.names);
    let expected = [&first, &second].map(|basket| OrderPlaced {
        order_id: basket.id,
        total_cents: sum_of_ids(basket),
    });
    assert_eq!(recorded.await.unwrap(), expected);
    let stored = basket::Entity::find().filter(basket::Column::Marker.eq(&*shop.marker));
    assert_eq!(stored.count(&shop.test.db).await.unwrap(), 2);
    let items = article::Entity::find().filter(article::Column::BasketId.is_in([first.id, second.id]));
    assert_eq!(items.count(&shop.test.db).await.unwrap(), 3);
}

async fn transaction_has_the_requested_isolation_level(db: TestDb) {
    let shop = Shop::open(db).await;
    if shop.test.sql_backend() == DbBackend::Sqlite {
        return not_applicable("SQLite has one isolation level");
    }
    let outbox = shop.test.outbox();
    for (level, sees) in [
        (IsolationLevel::RepeatableRead, 0),
        (IsolationLevel::ReadCommitted, 1),
    ] {
        let tx = outbox
            .begin_with(TransactionOptions {
                isolation_level: Some(level),
                ..Default::default()
            })
            .await
            .unwrap();
        let count = || orders_of(&shop.marker).count(&tx);
        let before = count().await.unwrap();
        shop.order(1).insert(&shop.test.db).await.unwrap();
        assert_eq!(count().await.unwrap() - before, sees, "{level}");
        tx.rollback().await.unwrap();
    }
    let reads = TransactionTrait::begin_with_config(&outbox, None, Some(AccessMode::ReadOnly));
    let tx = reads.await.unwrap();
    assert!(shop.order(1).insert(&tx).await.is_err());
}

fn none<M>(_: &M) -> Option<OrderPlaced> {
    None
}

async fn errors_have_the_kind_of_their_cause(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let kind = |error: SaveError| (error.kind(), error.is_retryable());
    let never = |kind: ErrorKind| (kind, false);

    shop.customer("a").insert(&shop.test.db).await.unwrap();
    let twice = shop.customer("a").insert_with_events(&outbox, none).await;
    assert_eq!(kind(twice.unwrap_err()), never(ErrorKind::Refused));
    let missing = shop.customer("b").update_with_events(&outbox, none).await;
    assert_eq!(kind(missing.unwrap_err()), never(ErrorKind::RowMissing));
    let greeted = |customer: &str| {
        [CustomerGreeted {
            customer: customer.to_owned(),
            greeting: "hello".to_owned(),
        }]
    };
    shop.test.record(greeted("a")).await.unwrap();
    let again = shop.test.record(greeted("a")).await.unwrap_err();
    assert_eq!(never(ErrorKind::AlreadyRecorded), kind(again.into()));
    let invalid = shop.test.record(greeted("")).await.unwrap_err();
    assert_eq!(never(ErrorKind::InvalidEvent), kind(invalid.into()));

    shop.test
        .execute(&format!(
            "DROP TABLE {}",
            shop.test
                .names
                .table(shop.test.sql_backend(), "outbox_dedup_keys")
        ))
        .await;
    let no_table = shop.test.record(greeted("b")).await.unwrap_err();
    assert_eq!(never(ErrorKind::Misconfigured), kind(no_table.into()));
    shop.test.db.clone().close().await.unwrap();
    let away = shop.order(1).insert_with_events(&outbox, none).await;
    assert_eq!(kind(away.unwrap_err()), (ErrorKind::Unavailable, true));
}
