use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
enum OrderEvent {
    #[domain_event(aggregate = "order", name = "placed")]
    Placed(#[domain_event(aggregate_id)] u64),
    #[domain_event(name = "warned")]
    Warned(#[domain_event(aggregate_id)] u64),
}

fn main() {}
