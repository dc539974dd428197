//! The contents of a registration, and its discovery without being named.

#![allow(missing_docs, missing_debug_implementations, clippy::all)]

use outbox_core::DomainEvent;
use outbox_inbox::__private::inventory;
use outbox_inbox::{Event, Handler, HandlerError, Registration, Tx, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
pub struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

mod handlers {
    use super::*;

    /// Takes the ordered articles out of stock.
    #[idempotent_handler(consumer = "inventory")]
    pub async fn reserve_stock(mut event: Event<OrderPlaced>, _: Tx<'_>) -> Result<(), HandlerError> {
        event = std::convert::identity(event);
        std::future::ready(()).await;
        drop(event);
        Ok(())
    }
}

// A function and its handler are imported by one name.
use handlers::reserve_stock;

#[idempotent_handler(consumer = "mail")]
#[cfg(any())]
async fn left_out(event: Missing) -> Nothing {}

#[idempotent_handler(consumer = "mail")]
#[cfg(all())]
async fn r#move(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

fn assert_handler<H: Handler>() -> Registration {
    H::REGISTRATION
}

fn main() {
    let registration = assert_handler::<reserve_stock>();
    assert_eq!(registration.consumer, "inventory");
    assert_eq!(
        registration.handler,
        concat!(module_path!(), "::handlers::reserve_stock")
    );
    assert_eq!(registration.events, OrderPlaced::DESCRIPTORS);
    assert_eq!((registration.file, registration.line), (file!(), 22));
    // The event needs nothing, so only the transaction stands there.
    assert_eq!(registration.requires.len(), 1);
    assert_eq!(
        assert_handler::<r#move>().handler,
        concat!(module_path!(), "::move")
    );

    let mut linked: Vec<&str> = inventory::iter::<Registration>
        .into_iter()
        .map(|registration| registration.consumer)
        .collect();
    linked.sort_unstable();
    assert_eq!(linked, ["inventory", "mail"]);

    // The function stays callable, by tests for instance.
    let _ = reserve_stock;
}
