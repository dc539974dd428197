//! Records events in the transaction of their change, publishes them in order, and applies each
//! event exactly once.
//!
//! Depend on this crate: it re-exports the implementing crates and sets their features together.
//! [`prelude`] holds common names; [`migrate`] creates all tables.
//!
//! **Guarantees**
//!
//! - An event is stored if and only if its transaction commits.
//! - An event reaches the stream at least once, in the order of its aggregate.
//! - The effect of an event is applied once per consumer if the effect uses the handler's
//!   transaction, while the inbox stores the message id (15 days by default).
//!
//! **Not guaranteed**: a single delivery, order between aggregates, exactly-once effects outside
//! the database.
//!
//! ```no_run
//! use outbox::prelude::*;
//! use sea_orm::entity::prelude::*;
//! use sea_orm::{ExprTrait as _, Set};
//! use serde::{Deserialize, Serialize};
//! # mod order {
//! #     use sea_orm::entity::prelude::*;
//! #     #[sea_orm::model]
//! #     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
//! #     #[sea_orm(table_name = "orders")]
//! #     pub struct Model {
//! #         #[sea_orm(primary_key)]
//! #         pub id: i32,
//! #         pub units: i32,
//! #     }
//! #     impl ActiveModelBehavior for ActiveModel {}
//! # }
//! # mod stock {
//! #     use sea_orm::entity::prelude::*;
//! #     #[sea_orm::model]
//! #     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
//! #     #[sea_orm(table_name = "stock")]
//! #     pub struct Model {
//! #         #[sea_orm(primary_key)]
//! #         pub id: i32,
//! #         pub units: i32,
//! #     }
//! #     impl ActiveModelBehavior for ActiveModel {}
//! # }
//!
//! #[derive(DomainEvent, Serialize, Deserialize)]
//! #[domain_event(aggregate = "order", name = "placed")]
//! struct OrderPlaced {
//!     #[domain_event(aggregate_id)]
//!     order_id: i32,
//!     units: i32,
//! }
//!
//! // The consumer. Writes through `tx` commit together with the record that the event was handled.
//! #[idempotent_handler(consumer = "inventory")]
//! async fn reserve_stock(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
//!     stock::Entity::update_many()
//!         .col_expr(stock::Column::Units, Expr::col(stock::Column::Units).sub(event.units))
//!         .exec(&tx)
//!         .await?;
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), outbox::Failure> {
//!     // Both wait for their server, and end with an error if the login is rejected.
//!     let db = outbox::connect("postgres://localhost/shop").await?;
//!     let relay_db = outbox::connect("postgres://localhost/shop").await?;
//!     outbox::migrate(&db).await?;
//!     let stream = EventStream::default();
//!     let client = stream.connect("nats://127.0.0.1:4222").await?;
//!     stream.provision(&client).await?;
//!
//!     // The service: one transaction for the order and its event.
//!     order::ActiveModel { units: Set(2), ..Default::default() }
//!         .insert_with_events(&db, |order| {
//!             [OrderPlaced { order_id: order.id, units: order.units }]
//!         })
//!         .await?;
//!
//!     // The relay publishes committed events. The inbox runs the linked handlers.
//!     // Both end with Ctrl-C, SIGTERM, or the first error of either.
//!     let relay = stream.relay(relay_db, client.clone());
//!     let inbox = stream.inbox(db, client);
//!     Runner::new().with_relay(relay).with_inbox(inbox).run().await?;
//!     Ok(())
//! }
//! ```
//!
//! | you want | see |
//! |---|---|
//! | to start before database and broker | [`connect`], `EventStream::connect` |
//! | readable errors | [`Failure`] |
//! | to describe an event | [`DomainEvent`](crate::core::DomainEvent) |
//! | to save a model with its events | [`SaveWithEvents`](crate::sea_orm::SaveWithEvents) |
//! | to record events alone | [`record`](fn@crate::sea_orm::record) |
//! | to publish | [`Relay`], [`SqlStore`], module `nats` |
//! | to create relay and inbox of a stream | `EventStreamExt` |
//! | to handle events | [`inbox`], [`Strategy`](inbox::Strategy) |
//! | to run everything, with probes | [`Runner`], [`RunnerHealth`] |
//! | the tables | [`migrate`], [`migrations`] |
//! | to process dead letters of a relay | [`OutboxAudit`](crate::core::OutboxAudit) |
//! | to process dead letters of consumers | [`DeadLetters`](inbox::DeadLetters) |
//! | to test a service | module `testing` (feature `testing`) |
//!
//! | feature | adds |
//! |---|---|
//! | `postgres`, `mysql`, `sqlite` | the database; at least one. MariaDB is `mysql` |
//! | `nats` (default) | JetStream, module `nats` |
//! | `log` | the log relay (with `postgres`): module `log` |
//! | `http` | idempotent requests with `Idempotency-Key` for axum: `inbox::http` |
//! | `redis`, `redis-tls` | deduplication for effects outside the database, `inbox::redis` |
//! | `metrics` | metrics, through the crate `metrics` |
//! | `testing` | module `testing` |
//!
//! [`Relay`]: crate::core::Relay
//! [`SqlStore`]: crate::sea_orm::SqlStore
//!
//! No database is enabled by default. Choose TLS and the database's async runtime in your
//! dependency on SeaORM, for example with its feature `runtime-tokio-rustls`.
//!
//! The guide uses the single crates: its `outbox_core::Relay` is `outbox::core::Relay`. Import
//! modules by name: the `core` of `use outbox::*` collides with Rust's.
//!
//! The macros find this crate under any name in `Cargo.toml`, but use `outbox-core` or
//! `outbox-inbox` if named there. If `outbox-core` or `outbox-inbox` is only a development or
//! optional dependency, write `#[domain_event(crate = outbox::core)]` and `#[idempotent_handler(…,
//! crate = outbox::inbox)]`.

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

mod health;
#[cfg(feature = "nats")]
mod jetstream;
pub mod prelude;
mod runner;
mod tables;
#[cfg(feature = "testing")]
pub mod testing;

pub use health::RunnerHealth;
#[cfg(feature = "nats")]
pub use jetstream::EventStreamExt;
/// An error of any type, as readable text.
#[doc(inline)]
pub use outbox_core::Failure;
/// Opens a connection pool, and waits for its database.
#[doc(inline)]
pub use outbox_sea_orm::connect;
pub use runner::{RunError, RunReport, Runner};
#[cfg(feature = "migrator")]
pub use tables::migrations;
pub use tables::{migrate, migrate_with};

/// Events, messages, relay, and traits of stores and brokers.
#[doc(inline)]
pub use outbox_core as core;
/// Handlers with exactly-once effects.
#[doc(inline)]
pub use outbox_inbox as inbox;
/// The log relay, and with `postgres` the transaction log of PostgreSQL.
#[cfg(feature = "log")]
#[doc(inline)]
pub use outbox_log as log;
/// JetStream: stream, publisher and subscriber.
#[cfg(feature = "nats")]
#[doc(inline)]
pub use outbox_nats as nats;
/// SeaORM models saved with their events, and the relay's store.
#[doc(inline)]
pub use outbox_sea_orm as sea_orm;
