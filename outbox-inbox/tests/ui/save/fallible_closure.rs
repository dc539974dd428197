//! The closure only makes events: what may fail is computed before the save.
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
    let _ = order
        .insert_with_events(&db, |_| {
            let order_id = "7".parse()?;
            [OrderPlaced { order_id }]
        })
        .await;
}

fn main() {}
