use outbox_core::DomainEvent;
use outbox_inbox::{Event, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[idempotent_handler(consumer = "inventory")]
async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Err("as with anyhow".into())
}

fn main() {}
