use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order")]
enum OrderEvent {
    #[domain_event(name = "placed")]
    Placed {
        #[domain_event(aggregate_id)]
        order_id: u64,
    },
    #[domain_event(name = "placed", version = 2)]
    PlacedV2(#[domain_event(aggregate_id)] u64),
    #[domain_event(name = "placed")]
    PlacedAgain(#[domain_event(aggregate_id)] u64),
}

fn main() {}
