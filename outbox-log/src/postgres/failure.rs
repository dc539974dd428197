//! Why a log cannot be set up, and what a failed statement means to the relay.

use outbox_core::StoreError;
use sea_orm::{DbErr, RuntimeErr};

/// Why the log of an outbox cannot be used or set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The pool is not PostgreSQL's.
    #[error("only PostgreSQL's log can be read; use a polling relay (`Relay`) for other databases")]
    Database,
    /// The address of the replication connection cannot be used.
    #[error("the address of the replication connection cannot be used: {reason}")]
    Address {
        /// What is wrong and how to repair it. Never the address itself, which may hold a password.
        reason: String,
    },
    /// A name that PostgreSQL takes for no slot.
    #[error("`{name}` cannot name a log; use 1 to 50 characters of a to z, 0 to 9 and _")]
    Name {
        /// The name.
        name: String,
    },
    /// The server or the database has to be changed first.
    #[error("{context}")]
    Setup {
        /// What is wrong and how to repair it.
        context: String,
    },
    /// The database failed or could not be reached. What was done stays done; call again.
    #[error("{context}")]
    Failed {
        /// What could not be done.
        context: &'static str,
        /// The cause.
        source: DbErr,
    },
}

pub(crate) fn setup(context: impl Into<String>) -> LogError {
    LogError::Setup {
        context: context.into(),
    }
}

pub(crate) fn failed(context: &'static str) -> impl Fn(DbErr) -> LogError {
    move |source| LogError::Failed { context, source }
}

/// A failure of a statement while the relay runs.
pub(crate) fn trouble(context: &'static str) -> impl Fn(DbErr) -> StoreError {
    move |source| StoreError::Database {
        context,
        source: Box::new(source),
    }
}

/// The SQLSTATE of an error.
pub(crate) fn sqlstate(error: &DbErr) -> Option<String> {
    let (DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error))) = error
    else {
        return None;
    };
    let error = error.as_database_error()?;
    error.code().map(|code| code.into_owned())
}

impl From<LogError> for StoreError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Failed { context, source } => trouble(context)(source),
            error => Self::Setup {
                context: error.to_string(),
            },
        }
    }
}
