use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", subject = "audit.orders")]
enum OrderEvent {
    #[domain_event(name = "placed")]
    Placed {
        #[domain_event(aggregate_id)]
        order_id: u64,
    },
}

fn main() {}
