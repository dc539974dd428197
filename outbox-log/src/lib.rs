//! Publishes an outbox from the transaction log of its database: the log relay, and the log of
//! PostgreSQL.
//!
//! A polling relay queries the table for new messages, and marks each message as published. A
//! [`LogRelay`] reads each message from the database's log when its transaction commits, and marks
//! no message: lower latency, and no write per message. Writers, tables and consumers stay
//! unchanged.
//!
//! * [`LogRelay`] works with every [`MessageLog`](outbox_core::log::MessageLog); [`relay`] lists
//!   the guarantees.
//! * [`PostgresLog`] reads PostgreSQL's logical replication.
//!
//! ```no_run
//! use outbox_log::{LogRelay, PostgresLog};
//! use outbox_sea_orm::SqlStore;
//! # async fn demo(
//! #     db: sea_orm::DatabaseConnection,
//! #     publisher: impl outbox_core::Publisher,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! // The user of this address needs the attribute REPLICATION.
//! let log = PostgresLog::new(db.clone(), "postgres://relay:secret@db.internal/shop")?;
//! // Once, by the owner of the tables: `log.init().await?`.
//! let shutdown = outbox_core::shutdown::on_signals();
//! LogRelay::new(SqlStore::new(db), log, publisher).run(shutdown).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Set-up
//!
//! The log needs PostgreSQL 15 or later with `wal_level = logical`. [`PostgresLog::init`] creates
//! the publication, the replication slot and the table `outbox_log`. Later messages get the status
//! *logged*: they are published from the log. [`PostgresLog::drop`] returns to a polling relay.
//! `init` and `drop` may run while services and relays run. [`PostgresLog::status`] reports the
//! state of the slot.
//!
//! **An unread slot fills the disk.** Set `max_slot_wal_keep_size`, and drop the log before you
//! stop its relay for good. A running relay retains at most [`LogConfig::retained_max`] bytes:
//! beyond this size, the relay publishes from the table.
//!
//! The replication connection is not encrypted. Use a Unix socket, the same host, or a tunnel.
//!
//! Features: `postgres` (default) adds [`PostgresLog`], `metrics` the metrics of [`telemetry`].

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "postgres")]
mod postgres;
pub mod relay;
pub mod telemetry;

#[cfg(feature = "postgres")]
pub use postgres::{LogError, PostgresLog, PostgresLogReader, SlotStatus};
pub use relay::{LogConfig, LogHealthCheck, LogRelay, LogStatus};
