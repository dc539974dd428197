//! Stores a SeaORM model and its events in one transaction, and serves the events to the relay.
//!
//! [`SaveWithEvents`] writes model and events in one transaction. With separate writes, a crash
//! between save and publish loses the event. A [`Relay`](outbox_core::Relay) over [`SqlStore`]
//! publishes committed events at least once and in order per aggregate.
//!
//! **Guaranteed**: events exist if and only if the transaction committed. Per aggregate they are
//! numbered 1, 2, 3 … in commit order.
//!
//! **Not guaranteed**: the outcome of a commit if its connection is lost
//! ([`SaveError::CommitUnknown`]).
//!
//! ```
//! use outbox_core::DomainEvent;
//! use outbox_sea_orm::SaveWithEvents;
//! use sea_orm::{ConnectionTrait, Database, Set};
//! use serde::{Deserialize, Serialize};
//!
//! mod order {
//!     use sea_orm::entity::prelude::*;
//!
//!     #[sea_orm::model]
//!     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
//!     #[sea_orm(table_name = "orders")]
//!     pub struct Model {
//!         #[sea_orm(primary_key)]
//!         pub id: i32,
//!         pub total_cents: i64,
//!     }
//!     impl ActiveModelBehavior for ActiveModel {}
//! }
//!
//! #[derive(DomainEvent, Serialize, Deserialize)]
//! #[domain_event(aggregate = "order", name = "placed")]
//! struct OrderPlaced {
//!     #[domain_event(aggregate_id)]
//!     order_id: i32,
//!     total_cents: i64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = sea_orm::ConnectOptions::new("sqlite::memory:");
//! options.max_connections(1); // Each connection has its own `:memory:` database.
//! let db = Database::connect(options).await?;
//! db.execute_unprepared(
//!     "CREATE TABLE orders (id INTEGER PRIMARY KEY, total_cents BIGINT NOT NULL)",
//! )
//! .await?;
//! outbox_sea_orm::migrate(&db).await?;
//!
//! let order = order::ActiveModel { total_cents: Set(1999), ..Default::default() }
//!     .insert_with_events(&db, |order| {
//!         [OrderPlaced { order_id: order.id, total_cents: order.total_cents }]
//!     })
//!     .await?;
//! assert_eq!(order.total_cents, 1999);
//! # Ok(())
//! # }
//! ```
//!
//! | you have | you use |
//! |---|---|
//! | a model and events | [`SaveWithEvents`]: `insert_`, `update_`, `save_`, `delete_with_events` |
//! | many rows and their events | [`SaveManyWithEvents`]: `insert_many_with_events` |
//! | domain methods that raise events; nested active models | [`AggregateRoot`] |
//! | events only | [`record()`], inside a transaction |
//! | several changes, with retries | [`OutboxConnection::transaction`] |
//! | other table names or limits | [`OutboxConnection`] with an [`OutboxConfig`] |
//! | a database that may start later | [`connect`](fn@connect) |
//! | a relay | [`SqlStore`], in a separate pool |
//! | no tables yet | [`migrate`]; in your own migrator [`migration`] |
//! | dead letters to decide about | [`SqlStore`] as [`OutboxAudit`](outbox_core::OutboxAudit) |
//! | tests | module `testing` (feature `testing`) |
//!
//! Publishing: `outbox-nats`. Consuming: `outbox-inbox`.
//!
//! Enable a driver feature (`postgres`, `mysql` or `sqlite`), and SeaORM's runtime and TLS features
//! in your `Cargo.toml`. MySQL support is tested with MariaDB.

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(
    not(all(feature = "postgres", feature = "mysql", feature = "sqlite")),
    allow(unused)
)]

mod config;
mod connect;
mod error;
pub mod names;
mod server;
mod sql;
mod store;
mod task;
mod write;

pub mod migration;
#[cfg(feature = "testing")]
pub mod testing;

pub use config::OutboxConfig;
pub use connect::{ConnectError, connect};
pub use error::code::is_commit_refused;
pub use error::kind::ErrorKind;
pub use error::{RecordError, SaveError};
pub use migration::migrate;
pub use names::{NameError, TableNames};
pub use store::{Held, SqlStore};
pub use write::aggregate::{AggregateRoot, Write};
pub use write::executor::Executor;
pub use write::many::{MakesEventsOfEach, SaveManyWithEvents};
pub use write::record::record;
pub use write::retry::OpenTransaction;
pub use write::save::{MakesEvents, SaveWithEvents};
pub use write::transaction::{OutboxConnection, OutboxTransaction, Transactional};

#[doc(hidden)]
pub use connect::memory::{CAN_BE_LOST, InMemory, keep_in_memory};
#[doc(hidden)]
pub use connect::{check_address, check_sessions, connect_error, open_lazily, reach, why_no_connection};
#[doc(hidden)]
pub use error::answer::DatabaseAnswer;
#[doc(hidden)]
pub use error::kind::kind_of_driver;
#[doc(hidden)]
pub use server::{unfit_settings, untested_engine, version_query};
#[doc(hidden)]
pub use sql::Sql;
#[doc(hidden)]
pub use store::audit::sql::OperationsSql;
#[doc(hidden)]
pub use task::detached;
#[doc(hidden)]
pub use write::integrity::Integrity;
#[doc(hidden)]
pub use write::integrity::watch::Watched;
#[doc(hidden)]
pub use write::session::{begin_nested, run_once};
