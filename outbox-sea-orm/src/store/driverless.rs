//! Stands in for `session` in builds without a driver: every call fails with an error that says so.

use std::sync::Arc;

use sea_orm::{DatabaseConnection, DbBackend, DbErr, ExecResult, QueryResult, Statement};

use super::no_driver;

/// Nothing is known about sessions that cannot exist.
#[derive(Debug, Clone, Default)]
pub(super) struct Isolation {}

pub(super) async fn call<T, E, F: Future<Output = Result<T, E>>>(
    pool: &DatabaseConnection,
    _: &Isolation,
    work: impl FnOnce(Arc<Session>) -> F,
) -> Result<T, E> {
    work(Arc::new(Session(pool.get_database_backend()))).await
}

#[derive(Debug)]
pub(super) struct Session(DbBackend);

impl Session {
    pub(super) fn get_database_backend(&self) -> DbBackend {
        self.0
    }

    pub(super) async fn shows_commits_early(&self) -> Result<bool, DbErr> {
        Err(no_driver(self.0))
    }

    pub(super) async fn execute_raw(&self, _: Statement) -> Result<ExecResult, DbErr> {
        Err(no_driver(self.0))
    }

    pub(super) async fn query_one_raw(&self, _: Statement) -> Result<Option<QueryResult>, DbErr> {
        Err(no_driver(self.0))
    }

    pub(super) async fn query_all_raw(&self, _: Statement) -> Result<Vec<QueryResult>, DbErr> {
        Err(no_driver(self.0))
    }

    pub(super) async fn each_row<E>(
        &self,
        _: Statement,
        into: impl Fn(DbErr) -> E,
        _: impl FnMut(QueryResult) -> Result<bool, E>,
    ) -> Result<(), E> {
        Err(into(no_driver(self.0)))
    }

    pub(super) async fn first_row(&self, _: Statement) -> Result<Option<QueryResult>, DbErr> {
        Err(no_driver(self.0))
    }

    pub(super) async fn execute_unprepared(&self, _: &str) -> Result<ExecResult, DbErr> {
        Err(no_driver(self.0))
    }

    pub(super) fn close(&self) {}

    pub(super) async fn begin(&self) -> Result<Transaction, DbErr> {
        Err(no_driver(self.0))
    }

    pub(super) async fn snapshot(&self) -> Result<Transaction, DbErr> {
        Err(no_driver(self.0))
    }
}

/// A transaction that cannot exist.
#[derive(Debug)]
pub(super) enum Transaction {}

impl Transaction {
    pub(super) async fn commit(self) -> Result<(), DbErr> {
        match self {}
    }
}

impl std::ops::Deref for Transaction {
    type Target = Session;

    fn deref(&self) -> &Session {
        match *self {}
    }
}
