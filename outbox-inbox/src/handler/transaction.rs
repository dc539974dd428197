//! The transaction as a handler sees it, and the outbox within it.
//!
//! Invariant: what goes through [`Tx`] and [`Outbox`] commits together with the inbox row, or not at all. Neither can
//! commit or roll back: that is the runtime's part, after the handler has returned.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_core::{IntoEvents, MessageId};
use outbox_sea_orm::{OutboxConfig, OutboxTransaction, RecordError, Transactional};
use sea_orm::{DatabaseTransaction, DbErr};

use super::context::HandlerContext;
use super::error::HandlerError;
use super::extract::FromContext;

/// The handler's transaction. Write every effect through it: `.insert(&tx)`, `.exec(&tx)`, `insert_with_events(&tx, …)`.
///
/// **Return database errors**, do not swallow them: PostgreSQL aborts a transaction at the first error. The runtime notices a
/// handler that went on regardless, and treats it as failed. To survive an expected error, do that part in a nested
/// transaction (`tx.begin()`, a savepoint).
#[derive(Clone, Copy)]
pub struct Tx<'a> {
    transaction: &'a DatabaseTransaction,
    outbox: &'a OutboxConfig,
    recorded: &'a AtomicBool,
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

impl<'a> FromContext<'a> for Tx<'a> {
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Ok(Self {
            transaction: context.transaction,
            outbox: context.outbox,
            recorded: context.recorded,
        })
    }
}

impl Tx<'_> {
    /// Opens a nested transaction (a savepoint) for a part that may fail. It records where this one does, and is undone with it.
    ///
    /// # Errors
    ///
    /// The database's error; return it.
    pub async fn begin(&self) -> Result<OutboxTransaction, DbErr> {
        OutboxTransaction::within(self).await
    }
}

impl Deref for Tx<'_> {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        self.transaction
    }
}

impl Transactional for Tx<'_> {
    fn transaction(&self) -> &DatabaseTransaction {
        self.transaction
    }

    fn config(&self) -> &OutboxConfig {
        // Asked for by whoever is about to record; the commit then wakes the relays.
        self.recorded.store(true, Ordering::Relaxed);
        self.outbox
    }
}

outbox_sea_orm::__connection_by_deref!(Tx<'_>);

/// Records follow-up events in the handler's transaction. They carry the handled message as their cause, and its correlation
/// id.
#[derive(Debug, Clone, Copy)]
pub struct Outbox<'a>(Tx<'a>);

impl Outbox<'_> {
    /// Records events; they exist if and only if the handler's transaction commits.
    ///
    /// # Errors
    ///
    /// [`RecordError`]; return it.
    ///
    /// # Cancellation
    ///
    /// As [`outbox_sea_orm::record`]: a handler whose future is dropped is rolled back.
    pub async fn record(&self, events: impl IntoEvents) -> Result<Vec<MessageId>, RecordError> {
        outbox_sea_orm::record(&self.0, events).await
    }
}

impl<'a> FromContext<'a> for Outbox<'a> {
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Tx::from_context(context).map(Self)
    }
}
