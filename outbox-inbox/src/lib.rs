//! The transactional inbox: handlers with exactly-once effects in a database.
//!
//! The inbox writes a row per (consumer, message) in the transaction of the handler's effects. A
//! redelivered message finds the row and is skipped.
//!
//! **Guaranteed**, for effects through the handler's transaction:
//!
//! - One effect per consumer and message while the inbox row is kept (15 days by default).
//! - Within a process, messages of one aggregate run one at a time, in stream order. A failed
//!   message holds back its aggregate until it is handled or dead-lettered.
//! - A message that cannot be handled becomes a [dead letter](DeadLetters) with its raw bytes.
//! - Outages of the database or the broker use no attempts.
//!
//! Strategies other than `message_id` have other guarantees: see [`Strategy`].
//!
//! **Not guaranteed**:
//!
//! - Effects outside the database. They happen at least once; the receiver can drop repeated
//!   effects by [`StableKey`].
//! - No order of an aggregate between processes, without [`Strategy::Sequence`] or
//!   [`Order::Strict`].
//! - No order after a dead-lettered message: later messages of its aggregate continue.
//!
//! **Not allowed**: statements that end the transaction. On MySQL and MariaDB, DDL (`CREATE`,
//! `ALTER`, `TRUNCATE`) commits the open transaction: never run DDL in a handler.
//!
//! ```standalone_crate
//! use outbox_testing::MemoryBroker;
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
//! async fn reserve_stock(
//!     event: Event<OrderPlaced>,
//!     tx: Tx<'_>,
//!     outbox: Outbox<'_>,
//! ) -> Result<(), HandlerError> {
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
//! db.execute_unprepared("CREATE TABLE stock (units INTEGER)").await?;
//! db.execute_unprepared("INSERT INTO stock VALUES (10)").await?;
//!
//! // The producer.
//! let tx = db.begin().await?;
//! record(&tx, [OrderPlaced { order_id: 7, units: 3 }]).await?;
//! tx.commit().await?;
//! let broker = MemoryBroker::new();
//! Relay::new(SqlStore::new(db.clone()), broker.publisher()).drain().await?;
//!
//! // The consumer. The broker delivers every message twice. A service calls `run(shutdown)`.
//! broker.duplicate_deliveries(usize::MAX);
//! let report = Inbox::new(db.clone(), broker.subscriber()).drain().await?;
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
//! - Handlers: [`idempotent_handler`](macro@idempotent_handler), arguments: [`FromContext`],
//!   errors: [`HandlerError`]
//! - Duplicates: [`Strategy`]; order: [`Order`]; batches: [`HandlerOptions`]
//! - Follow-up events: [`Emit`], [`Outbox`]
//! - Effects outside the database: [`StableKey`], [`DedupStore`]: `redis` (features `redis`,
//!   `redis-tls`)
//! - Running: [`Inbox`], [`InboxConfig`], [`Router`], [`link_handlers!`]
//! - Health: [`Inbox::health`]; middleware: [`Middleware`]; hooks: [`Inbox::on_handled`],
//!   [`Inbox::on_dead_letter`]
//! - Tables: [`migrate`], [`migration`]
//! - Older event versions: [`Upcasters`]
//! - Operation: [`DeadLetters`], [`Consumers`], [`PausedConsumers`], [`EventOutcomes`]
//! - Metrics and traces: [`telemetry`] (feature `metrics`)
//! - HTTP requests: `http` (feature `http`)
//! - Tests: `testing::Harness` (feature `testing`)

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

mod handler;

mod config;
mod interest;
mod preflight;
mod router;
mod start_error;
mod upcast;

mod columns;
mod database;
mod dead_letter;
mod dedup;
mod hook;
mod layer;
mod operate;
mod operations;
mod outcomes;
mod panics;
mod pauses;
mod pool;
mod retention;
mod rights;
mod runtime;
mod server;

pub mod telemetry;

#[cfg(feature = "http")]
pub mod http;
pub mod migration;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;

pub use config::{InboxConfig, UnknownEvent, UnknownVersion, Unreadable};
pub use dead_letter::{
    DeadLetter, DeadLetterSelection, DeadLetterStatus, DeadLetters, ErasedDeadLetters, LetterPlace,
};
pub use handler::{
    BoxFuture, Effect, Emit, Event, EventArgument, FromContext, Handler, HandlerContext, HandlerError,
    HandlerOptions, HandlerState, IntoEffect, Invoke, KeyOf, Metadata, Order, Outbox, RawArgument,
    RawMessage, Registration, Requirement, Shape, StableKey, StateMap, Strategy, Tx,
};
pub use hook::{DeadDelivery, Handled};
pub use layer::{Middleware, Next};
pub use migration::migrate;
pub use operate::{
    AggregatePosition, ConsumerLag, Consumers, ConsumersError, DEAD_LETTERS_COUNT_MAX, check_consumer_name,
};
pub use operations::InboxOperations;
pub use outbox_core::StartAt;
pub use outbox_core::dedup::{ClaimToken, DedupFuture, DedupKey, DedupStore, DedupStoreError, StoreClaim};
#[doc(hidden)]
pub use outbox_sea_orm::DatabaseAnswer;
pub use outcomes::{EventOutcome, EventOutcomes};
pub use pauses::{PausedConsumer, PausedConsumers};
pub use router::Router;
pub use runtime::{ConsumerHealth, ConsumerState, Inbox, InboxError, InboxHealthCheck, InboxReport};
pub use start_error::{Problem, StartError};
pub use upcast::Upcasters;

/// Turns an async function into a [`Handler`] with exactly-once effects.
///
/// - `consumer`: `"inventory"`, 1 to 64 of `A-Z a-z 0-9 - _`. Required. The database stores the
///   name: after a rename the consumer handles all messages again.
/// - `messages`: `["order.placed", "cart.*", "*"]`, the event types of a handler of a
///   [`RawMessage`]. Default: the event types of `Event<T>`. Not allowed with strategy `key`; `"*"`
///   is not allowed with strategy `sequence`.
/// - `strategy`: see below. Default: `message_id`.
/// - `order`: `aggregate` (default), `none` or `strict`, see [`Order`]. `none` is not allowed with
///   strategy `sequence`.
/// - `batch`: 1 to 1000 messages per transaction. Default: 1; 100 for `Vec<Event<T>>`. After a
///   failed transaction, the messages of the batch are handled one by one.
/// - `attempts`: failed attempts before a message becomes a dead letter, 1 to 1,000,000. Default:
///   [`InboxConfig::attempts_max`].
/// - `backoff`: `"1s..5m"`, the shortest and longest delay between attempts. Default:
///   [`InboxConfig::backoff`].
/// - `timeout`: `"20s"`, the maximum run time, shorter than [`InboxConfig::ack_wait`]. Default:
///   [`InboxConfig::handler_timeout`].
/// - `crate`: path of a re-export of this crate, such as `::my_service::inbox`. Default: this crate
///   or `outbox`.
///
/// Durations are a whole number and `ms`, `s`, `m`, `h` or `d`, at most 366 days.
///
/// Strategies, and when an event is a duplicate:
///
/// - `message_id`: the consumer has an inbox row of the event.
/// - `sequence`, `sequence(gap = "30s")`: the event's sequence is at most the last handled sequence
///   of its aggregate. A message after a gap waits for `gap`. Default: twice `ack_wait`. With
///   `"0s"`, the newest event wins, and older events are dropped as stale.
/// - `natural`: no event is a duplicate; the handler is idempotent.
/// - `key(order_number)`: an earlier event has the same text in this field (`key(0)` in a tuple
///   struct).
/// - `key(OrderPlaced::number)`, `key(self::number)`: an earlier event has the same text from this
///   function, `fn(&OrderPlaced) -> impl Display`: 1 to 1,024 bytes.
/// - `constraint("reservations_pkey", …)`: the handler violates a listed constraint.
/// - `external`: the [`DedupStore`](Strategy::External) contains the event.
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
/// # #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced {
/// #     #[domain_event(aggregate_id)] order_id: u64, order_number: String, shop: u32
/// # }
/// use outbox_inbox::{Event, HandlerError, Tx, idempotent_handler};
///
/// // Two systems report the same order; the first one counts.
/// #[idempotent_handler(
///     consumer = "billing",
///     strategy = key(order_number),
///     backoff = "5s..10m",
///     attempts = 20
/// )]
/// async fn charge(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
/// #   drop((event, tx));
///     Ok(())
/// }
///
/// // A key of several fields.
/// impl OrderPlaced {
///     fn shop_and_number(&self) -> String {
///         format!("{}/{}", self.shop, self.order_number)
///     }
/// }
///
/// #[idempotent_handler(
///     consumer = "shipping",
///     strategy = key(OrderPlaced::shop_and_number),
///     timeout = "5s"
/// )]
/// async fn ship(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
/// #   drop((event, tx));
///     Ok(())
/// }
///
/// // Many at once, in the order of each aggregate.
/// #[idempotent_handler(consumer = "statistics", strategy = sequence(gap = "1m"), batch = 500)]
/// async fn count(events: Vec<Event<OrderPlaced>>, tx: Tx<'_>) -> Result<(), HandlerError> {
/// #   drop((events, tx));
///     Ok(())
/// }
///
/// // Its own table has a unique key, and no order waits for another.
/// #[idempotent_handler(
///     consumer = "inventory",
///     strategy = constraint("reservations_pkey"),
///     order = none
/// )]
/// async fn reserve(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
/// #   drop((event, tx));
///     Ok(())
/// }
/// ```
#[cfg(feature = "macros")]
pub use outbox_macros::idempotent_handler;

/// Items used by the macro, not public API.
#[doc(hidden)]
pub mod __private {
    pub use crate::handler::{BoxFuture, IntoOutcome, business_key, key_text};
    pub use inventory;
    pub use outbox_core::retry::Backoff;
    pub use outbox_core::{DomainEvent, EventDescriptor, Message};
}
