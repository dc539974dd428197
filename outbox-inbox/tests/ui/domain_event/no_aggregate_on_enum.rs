use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
enum OrderEvent {
    #[domain_event(name = "placed")]
    Placed {
        #[domain_event(aggregate_id)]
        order_id: u64,
    },
}

fn main() {}
