// One error only: the code that uses the handler reports none.

use outbox_core::DomainEvent;
use outbox_inbox::{Event, Handler, HandlerError, Registration, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[idempotent_handler(consumer = "inventory.eu")]
async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

fn registration<H: Handler>() -> Registration {
    H::REGISTRATION
}

fn main() {
    let _ = registration::<reserve_stock>();
    let _ = reserve_stock;
}
