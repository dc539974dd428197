//! The transaction as a handler sees it, and the outbox within it.
//!
//! Invariant: what goes through [`Tx`] and [`Outbox`] commits together with the inbox row, or not at all. Neither can
//! commit or roll back: that is the runtime's part, after the handler has returned.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use outbox_core::{IntoEvents, MessageId};
use outbox_sea_orm::{OutboxConfig, RecordError, Transactional};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, ExecResult, QueryResult, Statement};

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

// `&tx` must be good wherever SeaORM takes `&impl ConnectionTrait`; a `Deref` alone would make users write `&*tx`.
#[async_trait]
impl ConnectionTrait for Tx<'_> {
    fn get_database_backend(&self) -> DbBackend {
        self.transaction.get_database_backend()
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        self.transaction.execute_raw(statement).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.transaction.execute_unprepared(sql).await
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.transaction.query_one_raw(statement).await
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.transaction.query_all_raw(statement).await
    }

    fn support_returning(&self) -> bool {
        self.transaction.support_returning()
    }

    fn is_mock_connection(&self) -> bool {
        self.transaction.is_mock_connection()
    }
}

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
