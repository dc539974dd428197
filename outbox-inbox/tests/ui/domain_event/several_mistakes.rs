use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "Order", version = 0, subject = "a b", topic = "x")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
    #[domain_event(aggregate_id, name = "placed")]
    customer_id: u64,
}

fn main() {}
