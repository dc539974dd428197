//! Reads the outbox from PostgreSQL's transaction log: [`PostgresLog`] is the [`MessageLog`] of a [`LogRelay`](outbox_core::log::LogRelay).
//!
//! A polling relay asks the table for new messages, and marks each as published. A log relay is told of each message when its transaction commits, and marks
//! none: PostgreSQL's logical replication remembers how far its reader is. Messages arrive about as soon as their commit returns, and a published message
//! costs no write. [`outbox_core::log`] has the promises. Writers, the tables, and consumers stay as they are.
//!
//! ```no_run
//! use outbox_core::log::LogRelay;
//! use outbox_log::PostgresLog;
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
//! PostgreSQL 15 or later with `wal_level = logical`. [`PostgresLog::init`] makes the publication, the replication slot and the table `outbox_log`, and from
//! then on new messages are the log's. [`PostgresLog::drop`] is the way back to a polling relay. Both may run while services record messages and relays
//! publish them. [`PostgresLog::status`] shows how the slot stands.
//!
//! **A slot that nobody reads fills the disk.** Set `max_slot_wal_keep_size`, and drop the log before you stop its relay for good. A relay that runs
//! keeps no more than [`LogConfig::retained_max`](outbox_core::log::LogConfig::retained_max) bytes: beyond that, it publishes from the table.
//!
//! The replication connection is not encrypted. Use a Unix socket, the same host, or a tunnel.
//!
//! Not here: the relay, see `outbox-core`; the table, see `outbox-sea-orm`; other databases, whose logs have no reader yet.

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

mod address;
mod behind;
mod change;
mod check;
mod failure;
mod open;
mod pgoutput;
mod reader;
mod setup;
mod slot;
mod sql;
mod table;
mod unclaimed;

use std::fmt;

use outbox_core::StoreError;
use outbox_core::log::{Logged, Look, LookRequest, MessageLog, Position};
use outbox_core::{MessageId, OutboxStore as _, Pause, PurgeRequest, Purged};
use outbox_sea_orm::{SqlStore, TableNames};
use sea_orm::{DatabaseConnection, DbBackend};

pub use failure::LogError;
pub use reader::PostgresLogReader;
pub use setup::SlotStatus;

use address::Address;
use sql::Names;

/// The log of an outbox on PostgreSQL. Clones share the pool.
#[derive(Clone)]
pub struct PostgresLog {
    db: DatabaseConnection,
    address: Address,
    names: Names,
    tables: TableNames,
}

impl PostgresLog {
    /// The log of the outbox in this database. `url` is where the slot is read, usually the pool's own address; its user needs the attribute `REPLICATION`.
    /// The pool needs no such right. Nothing is asked of the database yet.
    ///
    /// # Errors
    ///
    /// [`LogError::Database`] if the pool is not PostgreSQL's, [`LogError::Address`] if the address cannot be read or asks for TLS.
    pub fn new(db: DatabaseConnection, url: &str) -> Result<Self, LogError> {
        if db.get_database_backend() != DbBackend::Postgres {
            return Err(LogError::Database);
        }
        Ok(Self {
            address: Address::parse(url)?,
            names: Names::new(&TableNames::default(), "outbox")?,
            tables: TableNames::default(),
            db,
        })
    }

    /// Names the log: `orders` makes the slot and the publication `orders_log`. Default: `outbox`. Slots are shared by all databases of a server, so each
    /// outbox of a server needs a name of its own.
    ///
    /// # Errors
    ///
    /// [`LogError::Name`] unless it has 1 to 50 characters of `a` to `z`, `0` to `9` and `_`.
    pub fn named(mut self, name: &str) -> Result<Self, LogError> {
        self.names = self.names.named(name)?;
        Ok(self)
    }

    /// Names of the tables, as [`SqlStore::with_names`](outbox_sea_orm::SqlStore) has them.
    #[must_use]
    pub fn with_names(mut self, names: &TableNames) -> Self {
        self.names = self.names.of_tables(names);
        self.tables = names.clone();
        self
    }
}

impl fmt::Debug for PostgresLog {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLog")
            .field("address", &self.address)
            .field("slot", &self.names.slot)
            .finish_non_exhaustive()
    }
}

impl MessageLog for PostgresLog {
    type Reader = PostgresLogReader;

    async fn preflight(&self) -> Result<Vec<String>, StoreError> {
        setup::preflight(&self.db, &self.names).await
    }

    async fn open(&self) -> Result<Option<PostgresLogReader>, StoreError> {
        open::open(self).await
    }

    async fn written(&self) -> Result<Position, StoreError> {
        table::written(&self.db).await
    }

    async fn look(&self, request: LookRequest<'_>) -> Result<Look, StoreError> {
        table::look(&self.db, &self.names, request).await
    }

    async fn adopt(&self, messages: &[Logged]) -> Result<Vec<MessageId>, StoreError> {
        table::adopt(&self.db, &self.names, messages).await
    }

    async fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        table::purge(&self.db, &self.names, request).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        let store = SqlStore::new(self.db.clone()).with_names(&self.tables);
        let store = store.map_err(|error| StoreError::Setup {
            context: error.to_string(),
        })?;
        store.pauses().await
    }
}
