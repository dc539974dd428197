//! The names that services, relays and consumers import: `use outbox::prelude::*`.
//!
//! Macros, extension traits, and common types. Free functions with short names, such as
//! [`nats::connect`](crate::nats::connect), stay in their modules. A name that you declare or
//! import yourself takes precedence.

#[cfg(feature = "nats")]
pub use crate::jetstream::EventStreamExt;
pub use crate::runner::Runner;
pub use outbox_core::shutdown::CancellationToken;
pub use outbox_core::{Catalogue, DomainEvent, MessageContext, Relay, RelayConfig};
pub use outbox_inbox::{
    Emit, Event, HandlerError, HandlerState, Inbox, InboxConfig, Metadata, Outbox, StableKey, Tx,
    idempotent_handler,
};
#[cfg(feature = "nats")]
pub use outbox_nats::{EventStream, JetStreamPublisher, JetStreamSubscriber, PublisherConfig};
pub use outbox_sea_orm::{
    AggregateRoot, OutboxConfig, OutboxConnection, SaveError, SaveManyWithEvents, SaveWithEvents, SqlStore,
    record,
};
