use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

fn main() {}
