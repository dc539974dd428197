use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order")]
enum OrderEvent {
    #[domain_event(name = "closed", crate = outbox_core)]
    Closed(#[domain_event(aggregate_id)] u64),
}

fn main() {}
