use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order")]
enum OrderEvent {
    #[domain_event(name = "closed", aggregate_id)]
    Closed(u64),
}

fn main() {}
