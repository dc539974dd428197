use outbox_core::DomainEvent;
use serde::Serialize;

const NAME: &str = "placed";

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", name = NAME)]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

fn main() {}
