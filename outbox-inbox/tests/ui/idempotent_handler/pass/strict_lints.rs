//! The generated code is quiet under the lints that careful crates deny.

#![forbid(unsafe_code)]
#![deny(
    warnings,
    missing_docs,
    missing_debug_implementations,
    single_use_lifetimes,
    unreachable_pub,
    unused_lifetimes,
    unused_qualifications,
    rust_2018_idioms
)]

/// Handlers.
pub mod handlers {
    use outbox_core::DomainEvent;
    #[allow(unused_imports)]
    use outbox_inbox::{
        Event, FromContext, Handler, HandlerContext, HandlerError, Registration, Tx, idempotent_handler,
    };
    use serde::{Deserialize, Serialize};

    /// An order was placed.
    #[deprecated]
    #[derive(Debug, DomainEvent, Serialize, Deserialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    pub struct OrderPlaced(#[domain_event(aggregate_id)] u64);

    #[allow(deprecated)]
    impl OrderPlaced {
        fn number(&self) -> u64 {
            self.0
        }
    }

    /// Takes the ordered articles out of stock.
    ///
    /// # Errors
    ///
    /// Never.
    #[allow(deprecated)]
    #[idempotent_handler(consumer = "inventory")]
    pub async fn reserve_stock(_event: Event<OrderPlaced>, _tx: Tx<'_>) -> Result<(), HandlerError> {
        Ok(())
    }

    #[allow(deprecated)]
    #[idempotent_handler(
        consumer = "billing",
        strategy = key(0),
        order = none,
        batch = 2,
        attempts = 1,
        backoff = "1s..1s",
        timeout = "1s"
    )]
    async fn write_bill(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }

    #[allow(deprecated)]
    #[idempotent_handler(consumer = "shipping", strategy = key(OrderPlaced::number))]
    async fn ship(_events: Vec<Event<OrderPlaced>>) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
