//! Handlers may be written by a macro of the user, and inside a function.

use outbox_inbox::{Event, Handler, HandlerError, idempotent_handler};

#[derive(outbox_core::DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced(#[domain_event(aggregate_id)] u64);

macro_rules! handler {
    ($name:ident, $consumer:expr, $event:ty, $output:ty, $key:tt, $timeout:expr) => {
        #[idempotent_handler(consumer = $consumer, strategy = key($key), timeout = $timeout)]
        async fn $name(_event: Event<$event>) -> $output {
            Ok(())
        }
    };
}

handler!(reserve_stock, "inventory", OrderPlaced, Result<(), HandlerError>, 0, "5s");

fn main() {
    handler!(write_bill, "billing", OrderPlaced, std::result::Result<(), HandlerError>, 0, "5s");
    assert_eq!(reserve_stock::REGISTRATION.consumer, "inventory");
    assert_eq!(write_bill::REGISTRATION.consumer, "billing");
}
