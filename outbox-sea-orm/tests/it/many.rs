//! Many rows saved with their events in one call.

use std::collections::HashSet;

use outbox_sea_orm::{ErrorKind, SaveManyWithEvents};
use sea_orm::{ConnectionTrait, Set};

use crate::on_every_backend;
use crate::shop::{CustomerGreeted, OrderPlaced, Shop, customer, order, placed_of};
use crate::support::TestDb;

on_every_backend!(
    many_rows_are_inserted_with_an_event_each,
    rows_with_client_keys_are_inserted_with_their_events,
    one_refused_row_or_event_stores_nothing,
    rows_with_composite_keys_are_inserted,
);

const ROWS: i32 = 2_050;

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

async fn rows_with_client_keys_are_inserted_with_their_events(db: TestDb) {
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

async fn one_refused_row_or_event_stores_nothing(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let twice = ["a", "b", "a"].map(|id| shop.customer(id));
    let refused = customer::Entity::insert_many_with_events(twice, &outbox, greeted)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused:?}");
    assert_eq!((shop.customers().await, shop.recorded().await.len()), (0, 0));

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

async fn rows_with_composite_keys_are_inserted(db: TestDb) {
    let shop = Shop::open(db).await;
    let table = "CREATE TABLE IF NOT EXISTS save_lines \
         (marker VARCHAR(60), number INTEGER, units INTEGER NOT NULL, PRIMARY KEY (marker, number))";
    // PostgreSQL may fail if two sessions create a table at once. After the failure the table
    // exists.
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
    assert_eq!(shop.recorded().await.len(), 450);
}
