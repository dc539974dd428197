use outbox_core::DomainEvent;
use outbox_inbox::{Event, HandlerError, Reply, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[idempotent_handler(consumer = "inventory", strategy = natural, on_duplicate = result)]
async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<Reply<u64>, HandlerError> {
    Ok(Reply(7))
}

fn main() {}
