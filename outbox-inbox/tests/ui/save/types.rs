use outbox_core::DomainEvent;
use outbox_sea_orm::SaveWithEvents;
use sea_orm::{DatabaseConnection, DatabaseTransaction};

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
}

mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
    }
    impl ActiveModelBehavior for ActiveModel {}
}

/// The closure of a save is not asynchronous: what it needs is loaded before.
mod async_closure {
    use super::*;

    async fn save(db: DatabaseConnection) {
        let order = order::ActiveModel::default();
        let _ = order.insert_with_events(&db, async |order| [OrderPlaced { order_id: order.id }]).await;
    }
}

/// Events are made by a closure: `|_| [event]`.
mod events_without_closure {
    use super::*;

    async fn save(db: DatabaseConnection) {
        let order = order::ActiveModel::default();
        let _ = order.insert_with_events(&db, [OrderPlaced { order_id: 1 }]).await;
    }
}

/// The closure only makes events: what may fail is computed before the save.
mod fallible_closure {
    use super::*;

    async fn save(db: DatabaseConnection) {
        let order = order::ActiveModel::default();
        let _ = order
            .insert_with_events(&db, |_| {
                let order_id = "7".parse()?;
                [OrderPlaced { order_id }]
            })
            .await;
    }
}

/// Models are saved through a connection or a transaction.
mod save_through_string {
    use super::*;

    async fn save(url: String) {
        let order = order::ActiveModel::default();
        let _ = order.insert_with_events(&url, |order| [OrderPlaced { order_id: order.id }]).await;
    }
}

/// A single event is not a collection: `|order| [event]`.
mod single_event {
    use super::*;

    async fn save(db: DatabaseConnection) {
        let order = order::ActiveModel::default();
        let _ = order.insert_with_events(&db, |order| OrderPlaced { order_id: order.id }).await;
    }
}

/// Events of two types are no array: `Events::new().with(placed).with(paid)`.
mod two_event_types {
    use super::*;

    #[derive(DomainEvent, serde::Serialize)]
    #[domain_event(aggregate = "order", name = "paid")]
    struct OrderPaid {
        #[domain_event(aggregate_id)]
        order_id: i32,
    }

    async fn save(db: DatabaseConnection) {
        let order = order::ActiveModel::default();
        let _ = order
            .insert_with_events(&db, |order| [OrderPlaced { order_id: order.id }, OrderPaid { order_id: order.id }])
            .await;
    }
}

/// Only events can be recorded.
mod record_non_event {
    use super::*;

    struct NotAnEvent;

    async fn record(tx: DatabaseTransaction) {
        let _ = outbox_sea_orm::record(&tx, [NotAnEvent]).await;
    }
}

fn main() {}
