//! What services, relays and consumers import: `use outbox::prelude::*`.
//!
//! Here are the macros, the traits that bring methods, and the types that nearly every program names. Absent on purpose: free functions with short names,
//! such as [`nats::connect`](crate::nats::connect), which say more with their module in front; and names that mean two things, such as the `Selection` of
//! the relay's and of the consumer's dead letters. A name that you declare or import yourself takes precedence over one from here.

pub use crate::runner::Runner;
pub use outbox_core::shutdown::CancellationToken;
pub use outbox_core::{Catalogue, DomainEvent, MessageContext, Relay, RelayConfig};
pub use outbox_inbox::{
    Emit, Event, HandlerError, Inbox, InboxConfig, Metadata, Outbox, Reply, StableKey, State, Tx,
    idempotent_handler,
};
#[cfg(feature = "nats")]
pub use outbox_nats::{
    EventStream, JetStreamPublisher, JetStreamSubscriber, PublisherConfig, SubscriberConfig,
};
pub use outbox_sea_orm::{AggregateRoot, SaveWithEvents, SqlStore, record};
