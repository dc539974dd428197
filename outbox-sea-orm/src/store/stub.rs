//! Stands in for `session` in builds without a driver: every call fails with an error that says so.

use std::sync::Arc;

use sea_orm::{DatabaseConnection, DbErr, ExecResult, QueryResult, Statement};

use super::no_driver;
use crate::sql::Dialect;

/// Nothing is known about sessions that cannot exist.
#[derive(Debug, Clone, Default)]
pub(super) struct Isolation {}

pub(super) async fn call<T, E, F: Future<Output = Result<T, E>>>(
    _: &DatabaseConnection,
    _: &Isolation,
    dialect: Arc<Dialect>,
    work: impl FnOnce(Arc<Session>) -> F,
) -> Result<T, E> {
    work(Arc::new(Session { dialect })).await
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) dialect: Arc<Dialect>,
}

impl Session {
    fn no_driver(&self) -> DbErr {
        no_driver(self.dialect.backend)
    }

    pub(super) async fn shows_commits_early(&self) -> Result<bool, DbErr> {
        Err(self.no_driver())
    }

    pub(super) async fn execute(&self, _: Statement) -> Result<ExecResult, DbErr> {
        Err(self.no_driver())
    }

    pub(super) async fn one(&self, _: Statement) -> Result<Option<QueryResult>, DbErr> {
        Err(self.no_driver())
    }

    pub(super) async fn all(&self, _: Statement) -> Result<Vec<QueryResult>, DbErr> {
        Err(self.no_driver())
    }

    pub(super) async fn each_row<E>(
        &self,
        _: Statement,
        into: impl Fn(DbErr) -> E,
        _: impl FnMut(QueryResult) -> Result<bool, E>,
    ) -> Result<(), E> {
        Err(into(self.no_driver()))
    }

    pub(super) async fn first_row(&self, _: Statement) -> Result<Option<QueryResult>, DbErr> {
        Err(self.no_driver())
    }

    pub(super) async fn execute_unprepared(&self, _: &str) -> Result<ExecResult, DbErr> {
        Err(self.no_driver())
    }

    pub(super) fn close(&self) {}

    pub(super) async fn begin(&self) -> Result<Transaction, DbErr> {
        Err(self.no_driver())
    }

    pub(super) async fn snapshot(&self) -> Result<Transaction, DbErr> {
        Err(self.no_driver())
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
