//! The transaction as a handler sees it, and its outbox.
//!
//! Invariant: all writes through [`Tx`] and [`Outbox`] commit together with the inbox row, or not
//! at all. Neither type can commit or roll back.

use std::any::TypeId;
use std::fmt;
use std::ops::Deref;

use outbox_core::{IntoEvents, MessageId};
use outbox_sea_orm::{Integrity, OutboxConfig, OutboxTransaction, RecordError, Transactional, Watched};
use sea_orm::{DatabaseTransaction, DbErr};

use super::context::HandlerContext;
use super::error::HandlerError;
use super::extract::FromContext;
use super::recording::Recorded;
use super::registration::{RecordsEvents, Requirement};

/// The handler's transaction. Write every effect through it: `.insert(&tx)`, `.exec(&tx)`,
/// `insert_with_events(&tx, …)`.
///
/// **Return database errors**: PostgreSQL aborts a transaction at the first error. If the handler
/// ignores the error, the attempt counts as failed. Run statements that may fail in a nested
/// transaction (`tx.begin()`, a savepoint).
#[derive(Clone, Copy)]
pub struct Tx<'a> {
    transaction: &'a DatabaseTransaction,
    outbox: &'a OutboxConfig,
    recorded: &'a Recorded,
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

impl<'a> FromContext<'a> for Tx<'a> {
    const TRANSACTIONAL: bool = true;

    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        let transaction = context.transaction.ok_or_else(|| {
            HandlerError::fatal(
                "the handler has no transaction; an argument that uses it must set `TRANSACTIONAL`",
            )
        })?;
        Ok(Self {
            transaction,
            outbox: context.outbox,
            recorded: context.recorded,
        })
    }
}

impl<'a> Tx<'a> {
    fn watched(&self) -> Watched<'a> {
        Watched::new(self.transaction, self.recorded.integrity())
    }

    /// Opens a nested transaction (a savepoint). Its rollback also undoes its events.
    ///
    /// # Errors
    ///
    /// The database's error; return it from the handler.
    pub async fn begin(&self) -> Result<OutboxTransaction, DbErr> {
        OutboxTransaction::within(self).await
    }
}

impl Deref for Tx<'_> {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        self.recorded.integrity().expose();
        self.transaction
    }
}

impl Transactional for Tx<'_> {
    fn transaction(&self) -> &DatabaseTransaction {
        self.recorded.doubt();
        self.transaction
    }

    fn config(&self) -> &OutboxConfig {
        self.recorded.note_any();
        self.outbox
    }

    fn integrity(&self) -> Option<&Integrity> {
        Some(self.recorded.integrity())
    }
}

outbox_sea_orm::__connection!(Tx<'_>, |this| this.watched());

outbox_sea_orm::__begins!(
    /// Nested transactions (savepoints). An isolation level or access mode is rejected.
    Tx<'_>,
    |tx, options| outbox_sea_orm::begin_nested(tx, options)
);

/// Records follow-up events in the handler's transaction. The handled message is their cause, and
/// they inherit its correlation id.
#[derive(Debug, Clone, Copy)]
pub struct Outbox<'a>(Tx<'a>);

impl Outbox<'_> {
    /// Records events, which exist if and only if the handler's transaction commits.
    ///
    /// # Errors
    ///
    /// [`RecordError`]; return it from the handler.
    ///
    /// # Cancellation
    ///
    /// The rules of [`outbox_sea_orm::record`] apply. If the handler's future is dropped, its
    /// transaction is rolled back.
    pub async fn record(&self, events: impl IntoEvents) -> Result<Vec<MessageId>, RecordError> {
        outbox_sea_orm::record(&self.0, events).await
    }
}

impl<'a> FromContext<'a> for Outbox<'a> {
    const REQUIRES: Option<Requirement> = Some(Requirement {
        id: TypeId::of::<RecordsEvents>,
        name: || "Outbox",
    });
    const TRANSACTIONAL: bool = true;

    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Tx::from_context(context).map(Self)
    }
}
