//! The whole path of an event: the test saves an order with its event, relays it, handles it, and
//! checks the effect.

use outbox::prelude::*;
use outbox::testing::MemoryBroker;
use sea_orm::{ActiveModelTrait, ConnectOptions, Database, EntityTrait, IntoActiveModel, Schema, Set};
use sea_orm::{ConnectionTrait, DatabaseConnection};
use serde::{Deserialize, Serialize};

mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub units: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

mod stock {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "stock")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub product: String,
        pub units: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
    units: i32,
}

#[idempotent_handler(consumer = "inventory")]
async fn reserve_stock(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let chai = stock::Entity::find_by_id("chai").one(&tx).await?;
    let mut chai = chai
        .ok_or_else(|| HandlerError::fatal("no stock"))?
        .into_active_model();
    chai.units = Set(chai.units.unwrap() - event.units);
    chai.update(&tx).await?;
    Ok(())
}

pub(crate) async fn database() -> DatabaseConnection {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1);
    let db = Database::connect(options).await.unwrap();
    let schema = Schema::new(db.get_database_backend());
    db.execute(&schema.create_table_from_entity(order::Entity))
        .await
        .unwrap();
    db.execute(&schema.create_table_from_entity(stock::Entity))
        .await
        .unwrap();
    outbox::migrate(&db).await.unwrap();
    let chai = stock::ActiveModel {
        product: Set("chai".to_owned()),
        units: Set(39),
    };
    chai.insert(&db).await.unwrap();
    db
}

pub(crate) async fn place_order(db: &DatabaseConnection) {
    let order = order::ActiveModel {
        units: Set(2),
        ..Default::default()
    };
    order
        .insert_with_events(db, |saved| {
            [OrderPlaced {
                order_id: saved.id,
                units: saved.units,
            }]
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn saved_event_is_applied_once() {
    let db = database().await;
    place_order(&db).await;
    let broker = MemoryBroker::new();
    let relay = Relay::new(SqlStore::new(db.clone()), broker.publisher());
    assert_eq!(relay.drain().await.unwrap().published, 1);

    broker.duplicate_deliveries(usize::MAX);
    let inbox = Inbox::new(db.clone(), broker.subscriber());
    assert_eq!(inbox.drain().await.unwrap().handled, 1);
    let chai = stock::Entity::find_by_id("chai").one(&db).await.unwrap();
    assert_eq!(chai.unwrap().units, 37);
}
