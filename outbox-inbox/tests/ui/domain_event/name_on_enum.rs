use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
enum OrderEvent {
    Placed(#[domain_event(aggregate_id)] u64),
}

fn main() {}
