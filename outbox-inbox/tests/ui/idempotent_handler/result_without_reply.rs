use outbox_core::DomainEvent;
use outbox_inbox::{Event, HandlerError, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[idempotent_handler(consumer = "inventory", on_duplicate = result)]
async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
