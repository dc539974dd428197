//! Handlers that take effect exactly once: the transactional inbox.
//!
//! A broker delivers a message at least once: after a crash, a lost acknowledgement or a slow handler it comes again. A consumer that
//! writes to its database each time counts an order twice. Here a row per (consumer, message) is written in the same transaction as the
//! handler's effects, before them: a message that has its row has had its effect, and a copy finds the row.
//!
//! **Promised**, for effects through the handler's transaction: one effect per consumer and message, however often, wherever and
//! in whichever order copies arrive, while the row is kept (14 days by default); messages of one aggregate one at a time; a message that cannot be handled is kept as
//! a [dead letter](dead_letters) with its raw bytes, and the others go on; outages of database and broker use no attempts.
//!
//! **Not promised**: anything about effects outside the database. They happen at least once; [`StableKey`] is the same each time,
//! so that the receiver can drop the copies. Nor order across a failure: later messages of an aggregate do not wait for one that is
//! tried again.
//!
//! ```standalone_crate
//! use outbox_core::testing::MemoryBroker;
//! use outbox_core::{DomainEvent, Relay};
//! use outbox_inbox::{Event, HandlerError, Inbox, Outbox, Tx, idempotent_handler};
//! use outbox_sea_orm::{SqlStore, record};
//! use sea_orm::{ConnectionTrait, Database, TransactionTrait};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(DomainEvent, Serialize, Deserialize)]
//! #[domain_event(aggregate = "order", name = "placed")]
//! struct OrderPlaced {
//!     #[domain_event(aggregate_id)]
//!     order_id: u64,
//!     units: u32,
//! }
//!
//! #[derive(DomainEvent, Serialize, Deserialize)]
//! #[domain_event(aggregate = "order", name = "reserved")]
//! struct StockReserved {
//!     #[domain_event(aggregate_id)]
//!     order_id: u64,
//! }
//!
//! /// Effects through `tx`, follow-up events through `outbox`: all or nothing, once.
//! #[idempotent_handler(consumer = "inventory")]
//! async fn reserve_stock(event: Event<OrderPlaced>, tx: Tx<'_>, outbox: Outbox<'_>) -> Result<(), HandlerError> {
//!     tx.execute_unprepared(&format!("UPDATE stock SET units = units - {}", event.units)).await?;
//!     outbox.record([StockReserved { order_id: event.order_id }]).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A database in memory lives as long as its one connection.
//! let mut options = sea_orm::ConnectOptions::new("sqlite::memory:");
//! options.max_connections(1);
//! let db = Database::connect(options).await?;
//! outbox_sea_orm::migrate(&db).await?;
//! outbox_inbox::migrate(&db).await?;
//! db.execute_unprepared("CREATE TABLE stock (units INTEGER); INSERT INTO stock VALUES (10)").await?;
//!
//! // The producer.
//! let tx = db.begin().await?;
//! record(&tx, [OrderPlaced { order_id: 7, units: 3 }]).await?;
//! tx.commit().await?;
//! let broker = MemoryBroker::new();
//! Relay::new(SqlStore::new(db.clone()), broker.publisher()).drain().await?;
//!
//! // The consumer. The broker delivers every message twice; a service calls `run(shutdown)` instead.
//! broker.duplicate_deliveries(usize::MAX);
//! let report = Inbox::new(db.clone(), broker.source()).drain_until_idle().await?;
//! assert_eq!(report.handled, 1);
//!
//! let row = db.query_one_raw(sea_orm::Statement::from_string(
//!     sea_orm::DbBackend::Sqlite,
//!     "SELECT units FROM stock",
//! ));
//! assert_eq!(row.await?.unwrap().try_get::<i32>("", "units")?, 7);
//! # Ok(())
//! # }
//! ```
//!
//! | you want | see |
//! |---|---|
//! | to write a handler | [`idempotent_handler`](macro@idempotent_handler), its arguments ([`FromContext`]) and errors ([`HandlerError`]) |
//! | to run handlers | [`Inbox`], [`InboxConfig`], [`Router`], [`link_handlers!`] |
//! | the tables | [`migrate`], [`migration`] |
//! | to look at what was given up | [`dead_letters`] |
//! | to test a handler | `testing::Harness` (feature `testing`) |

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

mod handler;

mod config;
mod router;
mod start;

mod database;
mod dead_letter;
mod dedup;
mod runtime;

#[cfg(feature = "migration")]
pub mod migration;
#[cfg(feature = "testing")]
pub mod testing;

pub use config::{InboxConfig, UnknownVersion, Unreadable};
pub use dead_letter::{DeadLetter, dead_letters};
pub use handler::{
    Event, EventArgument, FromContext, Handler, HandlerContext, HandlerError, Metadata, Outbox, Registration,
    Requirement, StableKey, State, StateMap, Tx,
};
#[cfg(feature = "migration")]
pub use migration::migrate;
pub use router::Router;
pub use runtime::{Inbox, InboxError, InboxReport};
pub use start::{Problem, StartError};

/// Makes an async function a handler that takes effect exactly once; see [`Handler`] for what it generates.
#[cfg(feature = "macros")]
pub use outbox_macros::idempotent_handler;

/// What the macro names. Not public API: it may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::handler::{BoxFuture, into_outcome};
    pub use inventory;
    pub use outbox_core::DomainEvent;
}
