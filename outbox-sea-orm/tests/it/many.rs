//! Many rows that are saved with their events in one call.

use std::collections::HashSet;

use outbox_sea_orm::{ErrorKind, SaveError, SaveManyWithEvents};
use sea_orm::prelude::Uuid;
use sea_orm::sea_query::{Expr, ExprTrait as _, OnConflict};
use sea_orm::{
    ActiveModelTrait, ColumnTrait, ConnectionTrait, DbBackend, EntityTrait, QueryFilter, Set,
    TransactionTrait,
};

use crate::on_every_backend;
use crate::shop::{CustomerGreeted, OrderPlaced, Shop, customer, order, placed_of};
use crate::support::TestDb;

on_every_backend!(
    many_rows_are_inserted_with_an_event_each,
    rows_with_keys_of_their_own_are_inserted_with_their_events,
    many_rows_are_updated_with_an_event_each,
    many_rows_are_deleted_with_an_event_each,
    an_upsert_records_what_it_inserted_and_what_it_updated,
    rows_that_an_upsert_leaves_alone_make_no_events,
    one_refused_row_or_event_of_many_leaves_nothing,
    many_rows_join_an_open_transaction,
    rows_are_found_by_their_uuids,
    rows_with_composite_keys_are_updated_and_deleted,
);

/// More than two statements' worth of rows.
const ROWS: i32 = 2_050;

/// The aggregates of the recorded events.
async fn aggregates(shop: &Shop) -> Vec<String> {
    let rows = shop.test.fetch_all().await;
    rows.into_iter()
        .map(|row| row.message.unwrap().aggregate.id.clone())
        .collect()
}

async fn many_rows_are_inserted_with_an_event_each(db: TestDb) {
    let shop = Shop::open(db).await;
    let orders: Vec<_> = (0..ROWS).map(|n| shop.order(i64::from(n))).collect();
    let saved = order::Entity::insert_many_with_events(orders, &shop.test.outbox(), placed_of)
        .await
        .unwrap();
    assert_eq!(shop.orders().await, i64::from(ROWS));
    let cents: HashSet<_> = saved.iter().map(|order| order.total_cents).collect();
    assert_eq!((saved.len(), cents.len()), (ROWS as usize, ROWS as usize));
    let ids: HashSet<_> = saved.iter().map(|order| order.id.to_string()).collect();
    let recorded = aggregates(&shop).await;
    assert_eq!(recorded.len(), ROWS as usize);
    assert_eq!(recorded.into_iter().collect::<HashSet<_>>(), ids);

    let none = order::Entity::insert_many_with_events([], &shop.test.outbox(), placed_of)
        .await
        .unwrap();
    assert!(none.is_empty());
}

fn greeted(customer: &customer::Model) -> Option<CustomerGreeted> {
    let is_greeted = !customer.id.starts_with("silent");
    is_greeted.then(|| CustomerGreeted {
        customer: customer.id.clone(),
        greeting: format!("hello {}", customer.id),
    })
}

async fn rows_with_keys_of_their_own_are_inserted_with_their_events(db: TestDb) {
    let shop = Shop::open(db).await;
    let ids = ["a", "silent", "b"];
    let customers = ids.map(|id| shop.customer(id));
    let saved = customer::Entity::insert_many_with_events(customers, &shop.test.outbox(), greeted)
        .await
        .unwrap();
    let saved: HashSet<_> = saved.into_iter().map(|customer| customer.id).collect();
    assert_eq!(
        saved,
        ids.map(|id| format!("{id}{}", shop.marker)).into_iter().collect()
    );
    let mut recorded = aggregates(&shop).await;
    recorded.sort();
    assert_eq!(recorded, ["a", "b"].map(|id| format!("{id}{}", shop.marker)));
}

/// Orders that are stored without events.
async fn without_events(shop: &Shop, orders: i32) {
    let orders: Vec<_> = (0..orders).map(|n| shop.order(i64::from(n))).collect();
    let none = |_: &order::Model| None::<OrderPlaced>;
    order::Entity::insert_many_with_events(orders, &shop.test.outbox(), none)
        .await
        .unwrap();
    assert_eq!(shop.recorded().await.len(), 0);
}

async fn many_rows_are_updated_with_an_event_each(db: TestDb) {
    let shop = Shop::open(db).await;
    without_events(&shop, ROWS).await;
    let raise = order::Entity::update_many().col_expr(
        order::Column::TotalCents,
        Expr::col(order::Column::TotalCents).add(10_000),
    );
    let filter = order::Column::Marker
        .eq(shop.marker.as_str())
        .and(order::Column::TotalCents.gte(1_000));
    let outbox = shop.test.outbox();
    let updated = order::Entity::update_many_with_events(raise, filter.clone(), &outbox, |order| {
        assert!(order.total_cents >= 11_000, "the row as it is stored now");
        placed_of(order)
    })
    .await
    .unwrap();
    assert_eq!(updated, 1_050);
    assert_eq!(shop.recorded().await.len(), 1_050);

    let nothing =
        order::Entity::update_many_with_events(order::Entity::update_many(), filter, &outbox, placed_of);
    assert_eq!(nothing.await.unwrap(), 0);
    let same = order::Entity::update_many().col_expr(order::Column::TotalCents, Expr::value(11_000));
    let one = order::Column::Marker
        .eq(shop.marker.as_str())
        .and(order::Column::TotalCents.eq(11_000));
    // A row whose values do not change is written all the same.
    assert_eq!(
        order::Entity::update_many_with_events(same, one, &outbox, placed_of)
            .await
            .unwrap(),
        1
    );
    assert_eq!(shop.recorded().await.len(), 1_051);
}

async fn many_rows_are_deleted_with_an_event_each(db: TestDb) {
    let shop = Shop::open(db).await;
    without_events(&shop, ROWS).await;
    let filter = order::Column::Marker
        .eq(shop.marker.as_str())
        .and(order::Column::TotalCents.gte(1_000));
    let outbox = shop.test.outbox();
    let deleted = order::Entity::delete_many_with_events(filter, &outbox, |order| {
        assert!(order.total_cents >= 1_000, "the row as it was");
        placed_of(order)
    });
    assert_eq!(deleted.await.unwrap(), 1_050);
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1_000, 1_050));
}

async fn an_upsert_records_what_it_inserted_and_what_it_updated(db: TestDb) {
    let shop = Shop::open(db).await;
    let old = customer::ActiveModel {
        marker: Set("old".to_owned()),
        ..shop.customer("a")
    };
    customer::Entity::insert(old)
        .exec_without_returning(&shop.test.db)
        .await
        .unwrap();
    let customers = ["a", "b"].map(|id| shop.customer(id));
    let overwrite = OnConflict::column(customer::Column::Id)
        .update_column(customer::Column::Marker)
        .to_owned();
    let outbox = shop.test.outbox();
    let saved = customer::Entity::upsert_many_with_events(customers, overwrite, &outbox, greeted)
        .await
        .unwrap();
    assert!(saved.iter().all(|customer| customer.marker == shop.marker));
    assert_eq!(
        (saved.len(), shop.customers().await, shop.recorded().await.len()),
        (2, 2, 2)
    );
}

async fn rows_that_an_upsert_leaves_alone_make_no_events(db: TestDb) {
    let shop = Shop::open(db).await;
    customer::Entity::insert(shop.customer("a"))
        .exec_without_returning(&shop.test.db)
        .await
        .unwrap();
    let ignore = OnConflict::column(customer::Column::Id)
        .do_nothing_on([customer::Column::Id])
        .to_owned();
    let customers = ["a", "b"].map(|id| shop.customer(id));
    let outbox = shop.test.outbox();
    let saved = customer::Entity::upsert_many_with_events(customers, ignore, &outbox, greeted).await;
    if shop.test.sql_backend() == DbBackend::MySql {
        // MariaDB returns both rows.
        let error = saved.unwrap_err();
        assert!(matches!(error, SaveError::Unsupported { .. }), "{error:?}");
        assert_eq!((shop.customers().await, shop.recorded().await.len()), (1, 0));
        return;
    }
    assert_eq!(saved.unwrap().len(), 1);
    assert_eq!(
        (shop.customers().await, aggregates(&shop).await),
        (2, vec![format!("b{}", shop.marker)])
    );
}

async fn one_refused_row_or_event_of_many_leaves_nothing(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let twice = ["a", "b", "a"].map(|id| shop.customer(id));
    let refused = customer::Entity::insert_many_with_events(twice, &outbox, greeted)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused:?}");
    assert_eq!((shop.customers().await, shop.recorded().await.len()), (0, 0));

    // The last of them, in the third statement.
    let orders: Vec<_> = (0..ROWS).map(|n| shop.order(i64::from(n))).collect();
    let refused = order::Entity::insert_many_with_events(orders, &outbox, |order| {
        let is_last = order.total_cents == i64::from(ROWS) - 1;
        [CustomerGreeted {
            customer: if is_last {
                String::new()
            } else {
                order.id.to_string()
            },
            greeting: order.id.to_string(),
        }]
    })
    .await
    .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidEvent, "{refused:?}");
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

async fn many_rows_join_an_open_transaction(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let tx = outbox.begin().await.unwrap();
    shop.order(1).insert(&tx).await.unwrap();
    let orders = [2, 3].map(|cents| shop.order(cents));
    let saved = order::Entity::insert_many_with_events(orders, &tx, placed_of)
        .await
        .unwrap();
    let twice = ["a", "a"].map(|id| shop.customer(id));
    // It undoes itself only.
    customer::Entity::insert_many_with_events(twice, &tx, greeted)
        .await
        .unwrap_err();
    // Through the primary key, because MariaDB locks every row that it looks at, those of other tests included.
    let filter = order::Column::Id.eq(saved[0].id);
    assert_eq!(
        order::Entity::delete_many_with_events(filter, &tx, placed_of)
            .await
            .unwrap(),
        1
    );
    tx.commit().await.unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (2, 3));
}

mod line {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "save_lines")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub marker: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub number: i32,
        pub units: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

async fn rows_with_composite_keys_are_updated_and_deleted(db: TestDb) {
    let shop = Shop::open(db).await;
    let table = "CREATE TABLE IF NOT EXISTS save_lines \
         (marker VARCHAR(60), number INTEGER, units INTEGER NOT NULL, PRIMARY KEY (marker, number))";
    // If two sessions create a table at once, one may fail in PostgreSQL's catalogue; then the table exists.
    if shop.test.db.execute_unprepared(table).await.is_err() {
        shop.test.execute(table).await;
    }
    let line = |number| line::ActiveModel {
        marker: Set(shop.marker.clone()),
        number: Set(number),
        units: Set(1),
    };
    let event = |line: &line::Model| {
        [OrderPlaced {
            order_id: line.number,
            total_cents: i64::from(line.units),
        }]
    };
    let outbox = shop.test.outbox();
    let lines: Vec<_> = (0..450).map(line).collect();
    let saved = line::Entity::insert_many_with_events(lines, &outbox, event)
        .await
        .unwrap();
    assert_eq!(saved.len(), 450);
    let own = || line::Column::Marker.eq(shop.marker.as_str());
    let more = line::Entity::update_many().col_expr(line::Column::Units, Expr::value(2));
    let upper = own().and(line::Column::Number.gte(40));
    assert_eq!(
        line::Entity::update_many_with_events(more, upper, &outbox, event)
            .await
            .unwrap(),
        410
    );
    assert_eq!(
        line::Entity::delete_many_with_events(own(), &outbox, event)
            .await
            .unwrap(),
        450
    );
    assert_eq!(shop.recorded().await.len(), 450 + 410 + 450);
    let left = line::Entity::find()
        .filter(own())
        .all(&shop.test.db)
        .await
        .unwrap();
    assert!(left.is_empty());
}

mod ticket {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "save_tickets")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: Uuid,
        pub marker: String,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

async fn rows_are_found_by_their_uuids(db: TestDb) {
    let shop = Shop::open(db).await;
    let id = match shop.test.db.get_database_backend() {
        DbBackend::MySql => "BINARY(16)",
        DbBackend::Postgres => "UUID",
        _ => "BLOB",
    };
    let table =
        format!("CREATE TABLE IF NOT EXISTS save_tickets (id {id} PRIMARY KEY, marker VARCHAR(60) NOT NULL)");
    if shop.test.db.execute_unprepared(&table).await.is_err() {
        shop.test.execute(&table).await;
    }
    let ids: Vec<_> = (0..30).map(|_| Uuid::now_v7()).collect();
    let tickets = ids.iter().map(|id| ticket::ActiveModel {
        id: Set(*id),
        marker: Set(shop.marker.clone()),
    });
    let tickets: Vec<_> = tickets.collect();
    let event = |_: &ticket::Model| {
        [OrderPlaced {
            order_id: 1,
            total_cents: 1,
        }]
    };
    let outbox = shop.test.outbox();
    let inserted = ticket::Entity::insert_many_with_events(tickets, &outbox, event).await;
    assert_eq!(inserted.unwrap().len(), 30);
    let some = ticket::Column::Id.is_in(ids[10..].iter().copied());
    let deleted = ticket::Entity::delete_many_with_events(some, &outbox, event).await;
    assert_eq!(deleted.unwrap(), 20);
    let own = ticket::Column::Marker.eq(shop.marker.as_str());
    let left = ticket::Entity::find().filter(own).all(&shop.test.db).await;
    assert_eq!(left.unwrap().len(), 10);
}

/// A call over SeaORM's own transaction, without a configuration, is for the default tables.
#[expect(dead_code, reason = "it is only compiled")]
async fn over_seaorm(
    db: sea_orm::DatabaseConnection,
    orders: Vec<order::ActiveModel>,
) -> Result<(), SaveError> {
    let tx = db.begin().await?;
    order::Entity::insert_many_with_events(orders, &tx, placed_of).await?;
    Ok(())
}
