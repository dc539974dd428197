use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced<T: Serialize> {
    #[domain_event(aggregate_id)]
    order_id: T,
}

fn main() {}
