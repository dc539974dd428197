use outbox_core::DomainEvent;
use outbox_inbox::{Event, HandlerError, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[idempotent_handler(
    consumer = "inventory",
    strategy = "natural",
    order = strict(true),
    batch = 0,
    attempts = 0,
    backoff = "1s",
    timeout = "0s",
)]
async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
