use outbox_core::DomainEvent;
use outbox_inbox::{Event, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[idempotent_handler(consumer = "in ventory", queue = "stock")]
pub fn reserve_stock<T>(_event: Event<T>, #[cfg(unix)] _more: impl Sized) {}

fn main() {}
