//! The closure of a save is not asynchronous: what it needs is loaded before.
use outbox_core::DomainEvent;
use sea_orm::DatabaseConnection;

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

async fn save(db: DatabaseConnection) {
    use outbox_sea_orm::SaveWithEvents;
    let order = order::ActiveModel::default();
    let _ = order.insert_with_events(&db, async |order| [OrderPlaced { order_id: order.id }]).await;
}

fn main() {}
