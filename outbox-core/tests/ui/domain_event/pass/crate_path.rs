//! A crate that re-exports the runtime under its own name; nothing is called `outbox_core` here.

mod my_service {
    pub use ::outbox_core as outbox;
}

use my_service::outbox::DomainEvent;

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "placed", crate = crate::my_service::outbox)]
struct OrderPlaced(#[domain_event(aggregate_id)] u64);

mod outbox_core {}

fn main() {
    assert_eq!(OrderPlaced(7).aggregate_id().as_str(), "7");
}
