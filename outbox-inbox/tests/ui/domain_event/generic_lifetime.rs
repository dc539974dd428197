use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced<'a> {
    #[domain_event(aggregate_id)]
    order_id: &'a str,
}

fn main() {}
