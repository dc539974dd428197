use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id, aggregate = "order")]
    order_id: u64,
}

fn main() {}
