//! A crate that re-exports the runtime under its own name; nothing is called `outbox_inbox` here.

mod my_service {
    pub use ::outbox_inbox as inbox;
}

mod outbox_inbox {}

use my_service::inbox::{Event, Handler, HandlerError, idempotent_handler};

#[derive(outbox_core::DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced(#[domain_event(aggregate_id)] u64);

#[idempotent_handler(
    consumer = "inventory",
    strategy = key(0),
    backoff = "1s..5m",
    crate = crate::my_service::inbox
)]
async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    assert_eq!(reserve_stock::REGISTRATION.consumer, "inventory");
}
