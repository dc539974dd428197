//! The transaction log of PostgreSQL: set-up, position, slot, and the relay's queries on the table.

mod address;
mod change;
mod check;
mod failure;
mod lag;
mod open;
mod orphans;
mod pgoutput;
mod reader;
mod setup;
mod slot;
mod sql;
mod table;

use std::fmt;

use outbox_core::log::{Logged, Look, LookRequest, MessageLog, Position};
use outbox_core::{MessageId, OutboxStore as _, Pause, PurgeRequest, Purged};
use outbox_core::{SetupKind, SetupProblem, StoreError};
use outbox_sea_orm::{SqlStore, TableNames};
use sea_orm::{DatabaseConnection, DbBackend};
use time::OffsetDateTime;

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
    /// Describes the log of the outbox in this database. `url` is the address of the replication
    /// connection. The user of this connection needs the attribute `REPLICATION`, the pool's user
    /// does not. No I/O.
    ///
    /// # Errors
    ///
    /// [`LogError::Setup`] if the pool is not for PostgreSQL, or the address is invalid or requires
    /// TLS.
    pub fn new(db: DatabaseConnection, url: &str) -> Result<Self, LogError> {
        if db.get_database_backend() != DbBackend::Postgres {
            return Err(failure::setup(
                "only PostgreSQL's log can be read; use a polling relay (`Relay`) for other databases",
            ));
        }
        Ok(Self {
            address: Address::parse(url)?,
            names: Names::new(&TableNames::default(), "outbox")?,
            tables: TableNames::default(),
            db,
        })
    }

    /// Names the log: with the name `orders`, slot and publication are called `orders_log`.
    /// Default: `outbox`. All databases of a server share its slots, so each outbox of a server
    /// needs a distinct name.
    ///
    /// # Errors
    ///
    /// [`LogError::Setup`] unless the name has 1 to 50 characters of `a` to `z`, `0` to `9` and
    /// `_`.
    pub fn named(mut self, name: &str) -> Result<Self, LogError> {
        self.names = self.names.named(name)?;
        Ok(self)
    }

    /// Sets the table names, as in [`SqlStore::with_names`](outbox_sea_orm::SqlStore).
    #[must_use]
    pub fn with_names(mut self, names: &TableNames) -> Self {
        self.names = self.names.of_tables(names);
        self.tables = names.clone();
        self
    }

    /// Checks the preconditions of [`init`](Self::init). Changes nothing.
    ///
    /// # Errors
    ///
    /// [`LogError::Failed`] if a query fails. The other errors:
    ///
    /// * [`LogError::Setup`] if the server is older than version 15, `wal_level` is not `logical`,
    ///   or no replication slot is free;
    /// * [`LogError::Setup`] if the user of the replication connection may not read slots;
    /// * [`LogError::Setup`] if the tables are missing, or the outbox has a log with another name;
    /// * [`LogError::Setup`] if the slot or the publication belongs to another program.
    pub async fn check(&self) -> Result<(), LogError> {
        check::check(self).await
    }

    /// Counts the logged, possibly unpublished messages of a time span, up to 1,000,000. Replay and
    /// reconcile skip these messages. If a log was never set up, all logged messages count. Reads
    /// the time span by the primary key. Clocks of writers and database may differ by a minute.
    ///
    /// # Errors
    ///
    /// [`LogError::Failed`] if a query fails.
    pub async fn undecided_between(
        &self,
        from: OffsetDateTime,
        until: OffsetDateTime,
    ) -> Result<u64, LogError> {
        lag::undecided_between(self, from, until).await
    }

    /// Whether the table holds messages with the status *logged*, but no log of these tables is
    /// active. Causes: a dropped or not restored `outbox_log`, messages copied into other tables,
    /// or an interrupted [`drop`](Self::drop). No relay publishes these messages;
    /// [`init`](Self::init) and `drop` make them pending. Takes no locks. Reads the whole table if
    /// no such message exists. Returns false without a table.
    ///
    /// # Errors
    ///
    /// [`LogError::Failed`] if a query fails.
    pub async fn has_unclaimed(&self) -> Result<bool, LogError> {
        orphans::exist(&self.db, &self.names).await
    }
}

impl fmt::Debug for PostgresLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLog")
            .field("address", &self.address)
            .field("slot", &self.names.slot)
            .finish_non_exhaustive()
    }
}

impl MessageLog for PostgresLog {
    type Reader = PostgresLogReader;

    async fn preflight(&self) -> Result<Vec<SetupProblem>, StoreError> {
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
        let store = store.map_err(|error| StoreError::setup(SetupKind::Setting, error.to_string(), ""))?;
        store.pauses().await
    }
}
