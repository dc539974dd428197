//! The core of a transactional outbox: events, messages, the relay engine, and the traits for
//! databases and brokers. No I/O.
//!
//! An outbox stores each event as a *message* in the transaction of the change. A *relay* then
//! publishes it at least once, in order per aggregate. Consumers drop duplicates (crate
//! `outbox-inbox`), so each event is applied once.
//!
//! `outbox-sea-orm` and `outbox-nats` implement the traits; `outbox-testing` has in-memory
//! implementations and the conformance suites.
//!
//! **Guaranteed**, if store and broker keep their contracts: each committed message is published at
//! least once, in commit order per aggregate, despite crashed relays and outages.
//!
//! **Not guaranteed**: exactly one copy on the wire, order between aggregates, and order of
//! `unsequenced` events.
//!
//! ```standalone_crate
//! use outbox_core::{DomainEvent, Relay};
//! use outbox_testing::{MemoryBroker, MemoryStore};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(DomainEvent, Serialize, Deserialize)]
//! #[domain_event(aggregate = "order", name = "placed", version = 1)]
//! struct OrderPlaced {
//!     #[domain_event(aggregate_id)]
//!     order_id: u64,
//!     total_cents: i64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
//! let mut transaction = store.begin();
//! transaction.record([OrderPlaced { order_id: 7, total_cents: 1999 }])?;
//! transaction.commit()?;
//!
//! Relay::new(store, broker.publisher()).drain().await?; // A service calls `run(shutdown)`.
//! assert_eq!(broker.messages()[0].event_type, "order.placed");
//! # Ok(())
//! # }
//! ```
//!
//! | task | see |
//! |---|---|
//! | describe an event | [`DomainEvent`] |
//! | record, store and send messages | [`NewMessage`], [`Message`], [`codec`] |
//! | run a relay | [`Relay`], [`RelayConfig`], [`shutdown`] |
//! | write a store or a broker | [`OutboxStore`], [`Publisher`], [`Subscriber`] |
//! | operate | [`OutboxAdmin`], [`OutboxReader`], [`OutboxAudit`], [`health`], [`telemetry`] |
//! | display payloads | [`SensitiveFields`] |
//! | correlation and trace ids | [`MessageContext`] |

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

pub mod catalogue;
pub mod event;
pub mod headers;
pub mod message;
pub mod payload;
pub mod sensitive;

pub mod codec;
pub mod context;

pub mod dedup;
pub mod log;
pub mod publisher;
pub mod store;
pub mod subscriber;

mod failure;
pub mod health;
pub mod relay;
pub mod retry;
pub mod shutdown;
pub mod telemetry;
pub mod wake;

mod metrics_table;
mod quick_map;
mod setters;

pub use catalogue::{Catalogue, CatalogueError};
pub use context::MessageContext;
pub use dedup::{ClaimToken, DedupKey, DedupStore, DedupStoreError, StoreClaim};
pub use event::{AggregateId, DomainEvent, EventDescriptor, ToAggregateId};
pub use failure::{Failure, describe};
pub use headers::{HeaderError, Headers};
pub use health::{Health, HealthCheck};
pub use message::{
    Aggregate, EventError, EventId, Events, IntoEvents, IntoMessage, Limits, Message, MessageId, NewMessage,
};
pub use payload::{Codec, EventCodec, Json, PayloadError};
pub use publisher::{
    Destination, FailureClass, PublishError, Publisher, Receipt, StreamExtent, StreamLog, StreamReader,
    StreamSearch, StreamedMessage,
};
pub use relay::{
    DeadMessage, Disagreement, EventPolicy, PoisonPolicy, Relay, RelayConfig, RelayError, RelayReport,
    Retention,
};
pub use sensitive::{MaskedPayload, SensitiveFields};
pub use store::{
    AggregateHead, Announcement, Backlog, BlockedAggregate, ExpiredRelay, FetchRequest, Fetched, FetchedRow,
    Forgotten, FoundMessage, FoundPublished, Intent, Lease, LiveRelay, MessageStatus, Operation,
    OperationFilter, OperationId, OperationKind, OperationMessages, OperationScope, OutboxAdmin, OutboxAudit,
    OutboxReader, OutboxStore, OwnerId, PageFrom, PartitionOwner, Pause, PauseRequest, Place, PublishedFound,
    PublishedSearch, PurgeRequest, Purged, Registration, RelayHealth, RelayMode, RelayTrouble, Relays,
    RowFault, Selection, Settlement, SetupKind, SetupProblem, StoreError, StoredMessage, TroubleClass,
    Verdict, WaitingRequest,
};
pub use subscriber::{
    ConsumerSpec, ConsumerStanding, Delivery, Incoming, StartAt, StreamFacts, StreamPolicy, Subscriber,
    SubscriberError, Subscription,
};

/// Derives [`DomainEvent`].
#[cfg(feature = "macros")]
pub use outbox_macros::DomainEvent;

/// For generated code. Not public API: may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::catalogue::CatalogueEntry;
    pub use inventory;
}
