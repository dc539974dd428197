use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order")]
enum OrderEvent {
    Closed(#[domain_event(aggregate_id, name = "closed")] u64),
}

fn main() {}
