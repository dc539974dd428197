use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    order_id: u64,
    total_cents: i64,
}

fn main() {}
