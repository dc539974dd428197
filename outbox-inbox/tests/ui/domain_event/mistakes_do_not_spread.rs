// One error only: the code that uses the event does not turn red.

use outbox_core::{DomainEvent, NewMessage};
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

fn main() {
    let event = OrderPlaced { order_id: 7 };
    let _ = event.descriptor().event_type();
    let _ = event.aggregate_id();
    let _ = NewMessage::from_event(&event);
}
