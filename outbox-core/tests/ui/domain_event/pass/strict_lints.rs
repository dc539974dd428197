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

/// Events.
pub mod events {
    use outbox_core::{AggregateId, DomainEvent, EventDescriptor, ToAggregateId};
    use serde::Serialize;
    use std::string::ToString;

    /// Names in scope that the generated code spells out.
    pub fn in_scope(id: u64) -> (AggregateId, String, &'static [EventDescriptor]) {
        (
            id.to_aggregate_id(),
            ToString::to_string(&id),
            OrderClosed::DESCRIPTORS,
        )
    }

    /// An order was placed.
    #[deprecated = "use `OrderEvent`"]
    #[derive(Debug, DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    pub struct OrderPlaced {
        /// The order.
        #[domain_event(aggregate_id)]
        pub order_id: u64,
    }

    /// An order was closed.
    #[derive(Debug, DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "closed")]
    pub struct OrderClosed(#[domain_event(aggregate_id, dedup_key)] u64);

    /// What happens to orders.
    #[derive(Debug, DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", version = 2)]
    pub enum OrderEvent {
        /// An order was placed.
        #[deprecated = "nothing places orders any more"]
        #[domain_event(name = "placed")]
        Placed {
            /// The order.
            #[deprecated]
            #[domain_event(aggregate_id)]
            order_id: u64,
        },
        /// An order was closed.
        #[domain_event(name = "closed")]
        Closed(#[domain_event(aggregate_id)] u64),
    }
}

fn main() {
    events::in_scope(1);
}
