//! Handlers that take effect exactly once: the transactional inbox.
//!
//! A broker delivers a message at least once: after a crash, a lost acknowledgement or a slow handler it comes again. A consumer that
//! writes to its database each time counts an order twice. Here a row per (consumer, message) is written in the same transaction as the
//! handler's effects, before them: a message that has its row has had its effect, and a copy finds the row.
//!
//! **Promised**, for effects through the handler's transaction:
//!
//! - One effect per consumer and message while the row is kept (15 days by default), however often, wherever and in whichever order copies arrive.
//! - Within a process, messages of one aggregate run one at a time, in the order of the stream, and none before a failed one has been handled or
//!   dead-lettered.
//! - A message that cannot be handled is kept as a [dead letter](DeadLetters) with its raw bytes, and the others go on.
//! - Outages of database and broker use no attempts.
//!
//! Other ways to recognise duplicates promise more or less: [`Strategy`].
//!
//! **Not promised**: anything about effects outside the database. They happen at least once; [`StableKey`] is the same each time,
//! so that the receiver can drop the copies. Nor order of an aggregate over several processes, unless the handler asks for it ([`Strategy::Sequence`],
//! [`Order::Strict`]), nor behind a message that was dead-lettered: its aggregate goes on without it.
//!
//! **Not allowed**: statements that end the transaction. On MySQL and MariaDB DDL (`CREATE`, `ALTER`, `TRUNCATE`) commits it, and the claim with it:
//! never run it in a handler.
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
//! | you want | see |
//! |---|---|
//! | to write a handler | [`idempotent_handler`](macro@idempotent_handler), its arguments ([`FromContext`]) and errors ([`HandlerError`]) |
//! | to choose how duplicates are recognised | [`Strategy`] |
//! | order, or none | [`Order`] |
//! | several messages in a transaction | `batch` of [`idempotent_handler`](macro@idempotent_handler), field `batch` of [`HandlerOptions`] |
//! | to return follow-up events | [`Emit`]; events in between: [`Outbox`] |
//! | effects outside the database | [`StableKey`], [`DedupStore`]: `redis` (features `redis`, `redis-tls`) |
//! | to run handlers | [`Inbox`], [`InboxConfig`], [`Router`], [`link_handlers!`] |
//! | probes for liveness and readiness | [`Inbox::health`] |
//! | code around handlers | [`Middleware`], [`Inbox::with_middleware`] |
//! | to be told | [`Inbox::on_handled`], [`Inbox::on_dead_letter`] |
//! | the tables | [`migrate`], [`migration`] |
//! | to handle older versions of an event | [`Upcasters`] |
//! | to look at dead letters, try them again, and erase those of an aggregate | [`DeadLetters`] |
//! | to see how far a consumer is behind | [`Consumers`] |
//! | to pause a consumer | [`PausedConsumers`] |
//! | to know what consumers have made of the events of a span | [`EventOutcomes`] |
//! | metrics and traces | [`telemetry`] (feature `metrics`) |
//! | the same for HTTP requests | `http` (feature `http`) |
//! | to test a handler | `testing::Harness` (feature `testing`) |

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
pub use dead_letter::{DeadLetter, DeadLetterSelection, DeadLetterStatus, DeadLetters, ErasedDeadLetters};
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
pub use outcomes::{EventOutcome, EventOutcomes, LetterPlace};
pub use pauses::{PausedConsumer, PausedConsumers};
pub use router::Router;
pub use runtime::{ConsumerHealth, ConsumerState, Inbox, InboxError, InboxHealthCheck, InboxReport};
pub use start_error::{Problem, ProblemKind, StartError};
pub use upcast::Upcasters;

/// Makes an async function a handler that takes effect exactly once; see [`Handler`] for what it generates.
///
/// | key | values | without it | write it when |
/// |---|---|---|---|
/// | `consumer` | `"inventory"`: 1 to 64 of `A-Z a-z 0-9 - _` | refused | always. It is stored: another name is another consumer, which handles everything again |
/// | `messages` | `["order.placed", "cart.*", "*"]`: event types, all of an aggregate type, everything | those of `Event<T>` | the handler takes messages undecoded ([`RawMessage`]); [`Router`] says which ones it gets beside other handlers. Not with strategy `key`, and `"*"` not with `sequence` |
/// | `strategy` | see below | `message_id` | duplicates are to be recognised otherwise; [`Strategy`] says what each costs |
/// | `order` | `aggregate`, `none`, `strict` | `aggregate` | messages need not wait for a failed one of their aggregate (`none`; not with `sequence`), or must wait for all before them (`strict`, one at a time) |
/// | `batch` | 1 to 1000 | 1; 100 for `Vec<Event<T>>` | handlers are short, and several messages can share a transaction. If one fails they are handled one by one |
/// | `attempts` | 1 to 1,000,000 | [`InboxConfig::attempts_max`] | this handler should make dead letters sooner or later than others |
/// | `backoff` | `"1s..5m"`: shortest and longest delay | [`InboxConfig::backoff`] | what it depends on recovers sooner or later than usual |
/// | `timeout` | `"20s"` | [`InboxConfig::handler_timeout`] | it is known to be quicker or slower; must be shorter than [`InboxConfig::ack_wait`] |
/// | `crate` | `::my_service::inbox` | found | your crate depends neither on this one nor on `outbox`, but on something that re-exports it |
///
/// Times are a whole number and `ms`, `s`, `m`, `h` or `d`, at most 366 days.
///
/// | `strategy =` | a duplicate is |
/// |---|---|
/// | `message_id` | an event that the consumer has a row of |
/// | `sequence`, `sequence(gap = "30s")` | an event whose number in its aggregate is not above the last one; messages after a gap wait for `gap` (twice `ack_wait`; `"0s"`: newest wins, older ones are dropped as stale) |
/// | `natural` | not recognised: the handler can run any number of times |
/// | `key(order_number)` | an event with the same text in this field (`key(0)` in a tuple struct) |
/// | `key(OrderPlaced::number)`, `key(self::number)` | an event for which this function, `fn(&OrderPlaced) -> impl Display`, gives the same text: at most 1,024 bytes, never empty |
/// | `constraint("reservations_pkey", …)` | a handler that violates one of these constraints |
/// | `external` | an event that the [`DedupStore`](Strategy::External) knows |
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64, order_number: String, shop: u32 }
/// use outbox_inbox::{Event, HandlerError, Tx, idempotent_handler};
///
/// // Two systems report the same order; the first one counts.
/// #[idempotent_handler(consumer = "billing", strategy = key(order_number), backoff = "5s..10m", attempts = 20)]
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
/// #[idempotent_handler(consumer = "shipping", strategy = key(OrderPlaced::shop_and_number), timeout = "5s")]
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
/// #[idempotent_handler(consumer = "inventory", strategy = constraint("reservations_pkey"), order = none)]
/// async fn reserve(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
/// #   drop((event, tx));
///     Ok(())
/// }
/// ```
#[cfg(feature = "macros")]
pub use outbox_macros::idempotent_handler;

/// What the macro names. Not public API: it may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::handler::{BoxFuture, IntoOutcome, business_key, key_text};
    pub use inventory;
    pub use outbox_core::retry::Backoff;
    pub use outbox_core::{DomainEvent, EventDescriptor, Message};
}
