use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(Serialize)]
struct OrderId(u64);

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: OrderId,
}

fn main() {}
