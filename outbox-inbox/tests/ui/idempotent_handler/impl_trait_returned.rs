use outbox_core::{DomainEvent, Events, IntoEvents};
use outbox_inbox::{Emit, Event, HandlerError, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[idempotent_handler(consumer = "inventory")]
async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<Emit<impl IntoEvents>, HandlerError> {
    Ok(Emit(Events::new()))
}

fn main() {}
