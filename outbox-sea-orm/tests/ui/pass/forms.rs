//! All forms of events, over a pool and inside a transaction.
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

use outbox_core::{Events, NewMessage};
use outbox_sea_orm::SaveWithEvents;
use sea_orm::TransactionTrait;

fn spawnable<T: Send>(future: T) -> T {
    future
}

async fn save(db: DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
    let order = order::ActiveModel::default;
    order().insert_with_events(&db, [OrderPlaced { order_id: 1 }]).await?;
    order().update_with_events(&db, vec![OrderPlaced { order_id: 1 }]).await?;
    order().save_with_events(&db, Some(OrderPlaced { order_id: 1 })).await?;
    let message = NewMessage::from_event(&OrderPlaced { order_id: 1 })?.with_header("tenant", "a")?;
    order().delete_with_events(&db, Events::new().with(OrderPlaced { order_id: 1 }).with(message)).await?;

    let tx = db.begin().await?;
    spawnable(order().insert_with_events(&tx, |saved: &order::Model| [OrderPlaced { order_id: saved.id }])).await?;
    spawnable(outbox_sea_orm::record(&tx, [OrderPlaced { order_id: 1 }])).await?;
    tx.commit().await?;
    Ok(())
}

fn main() {
    let _ = save;
}
