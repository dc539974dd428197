//! A connection that updates [`Integrity`] at each statement.

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, ExecResult, QueryResult, Statement};

use crate::write::integrity::Integrity;

/// Runs each statement through [`Integrity::watch`].
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Watched<'t> {
    tx: &'t DatabaseTransaction,
    integrity: &'t Integrity,
}

impl<'t> Watched<'t> {
    /// Wraps a transaction.
    #[must_use]
    pub fn new(tx: &'t DatabaseTransaction, integrity: &'t Integrity) -> Self {
        Self { tx, integrity }
    }
}

#[async_trait::async_trait]
impl ConnectionTrait for Watched<'_> {
    fn get_database_backend(&self) -> DbBackend {
        ConnectionTrait::get_database_backend(self.tx)
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        self.integrity
            .watch(self.tx, self.tx.execute_raw(statement))
            .await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.integrity
            .watch(self.tx, self.tx.execute_unprepared(sql))
            .await
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.integrity
            .watch(self.tx, self.tx.query_one_raw(statement))
            .await
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.integrity
            .watch(self.tx, self.tx.query_all_raw(statement))
            .await
    }

    fn support_returning(&self) -> bool {
        self.tx.support_returning()
    }

    fn is_mock_connection(&self) -> bool {
        self.tx.is_mock_connection()
    }
}
