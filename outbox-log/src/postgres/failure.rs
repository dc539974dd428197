//! Why a log cannot be set up, and how the relay treats a failed statement.

use outbox_core::{SetupKind, SetupProblem, StoreError};
use sea_orm::{DbErr, RuntimeErr};

/// Why the log of an outbox cannot be used or set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The address, the name, the server or the database must be changed first.
    #[error("{0}")]
    Setup(SetupProblem),
    /// The database failed or is unreachable. Completed steps stay; call again.
    #[error("{context}")]
    Failed {
        /// The failed action.
        context: &'static str,
        /// The cause.
        source: DbErr,
    },
}

pub(crate) fn setup(seen: impl Into<String>) -> LogError {
    LogError::Setup(SetupProblem::new(SetupKind::Setting, seen, ""))
}

pub(crate) fn failed(context: &'static str) -> impl Fn(DbErr) -> LogError {
    move |source| LogError::Failed { context, source }
}

pub(crate) fn trouble(context: &'static str) -> impl Fn(DbErr) -> StoreError {
    move |source| StoreError::Database {
        context,
        source: Box::new(source),
    }
}

pub(crate) fn sqlstate(error: &DbErr) -> Option<String> {
    let (DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error))) = error
    else {
        return None;
    };
    let error = error.as_database_error()?;
    error.code().map(|code| code.into_owned())
}

pub(crate) fn unless_missing<T: Default>(read: Result<T, DbErr>) -> Result<T, DbErr> {
    match read {
        Err(error) if sqlstate(&error).as_deref() == Some("42P01") => Ok(T::default()),
        read => read,
    }
}

impl From<LogError> for StoreError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Failed { context, source } => trouble(context)(source),
            LogError::Setup(problem) => Self::Setup(problem),
        }
    }
}
