//! Recording through a pool would not be atomic with anything.
use outbox_core::DomainEvent;
use sea_orm::DatabaseConnection;

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
}

async fn record(db: DatabaseConnection) {
    let _ = outbox_sea_orm::record(&db, [OrderPlaced { order_id: 1 }]).await;
}

fn main() {}
