use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", name = "placed", aggregate_id = "order_id")]
struct OrderPlaced {
    order_id: u64,
}

fn main() {}
