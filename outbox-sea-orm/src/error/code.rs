//! Codes of database errors.
//!
//! Invariant: a commit counts as refused only if the database reports so.

use sea_orm::sqlx;
use sea_orm::{DbErr, RuntimeErr};

/// Whether the database refused the commit and stored nothing: deferred constraint or trigger,
/// serialization failure, deadlock, Galera conflict. If false, the commit's outcome is unknown.
///
/// Use it for errors of [`OutboxTransaction::commit`](crate::OutboxTransaction::commit) and
/// SeaORM's own commit. A save over a pool already returns
/// [`SaveError::Database`](crate::SaveError::Database) or
/// [`SaveError::CommitUnknown`](crate::SaveError::CommitUnknown).
#[must_use]
pub fn is_commit_refused(error: &DbErr) -> bool {
    matches!(error, DbErr::Custom(_)) || ErrorCode::of(error).is_some_and(|answer| answer.refuses_commit())
}

pub(crate) fn is_transaction_in_progress(error: &DbErr) -> bool {
    ErrorCode::of(error).is_some_and(|answer| answer.number == Some(1568))
}

pub(crate) fn has_code(error: &DbErr, codes: &[&str]) -> bool {
    ErrorCode::of(error).is_some_and(|answer| codes.contains(&answer.code.as_str()))
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ErrorCode {
    /// SQLSTATE, or SQLite's result code in decimal.
    pub(crate) code: String,
    pub(crate) number: Option<u16>,
    pub(crate) text: String,
    is_fatal: bool,
}

impl ErrorCode {
    pub(crate) fn of(error: &DbErr) -> Option<Self> {
        match error {
            DbErr::Conn(cause) | DbErr::Exec(cause) | DbErr::Query(cause) => Self::of_cause(cause),
            _ => None,
        }
    }

    pub(crate) fn of_cause(cause: &RuntimeErr) -> Option<Self> {
        match cause {
            RuntimeErr::SqlxError(error) => Some(Self::of_answer(error.as_database_error()?)),
            _ => None,
        }
    }

    pub(crate) fn of_answer(answer: &(dyn sqlx::error::DatabaseError + 'static)) -> Self {
        #[cfg(feature = "postgres")]
        let is_fatal = answer
            .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
            .is_some_and(|answer| answer.severity() != sqlx::postgres::PgSeverity::Error);
        #[cfg(not(feature = "postgres"))]
        let is_fatal = false;
        #[cfg(feature = "mysql")]
        let number = answer
            .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
            .map(sqlx::mysql::MySqlDatabaseError::number);
        #[cfg(not(feature = "mysql"))]
        let number = None;
        Self {
            code: answer.code().unwrap_or_default().into_owned(),
            number,
            text: answer.message().to_owned(),
            is_fatal,
        }
    }

    /// SQLite's primary result code (the low byte). `None` for a SQLSTATE, which has five
    /// characters.
    pub(crate) fn sqlite(&self) -> Option<u32> {
        let code: u32 = self.code.parse().ok().filter(|_| self.code.len() < 5)?;
        Some(code & 0xff)
    }

    #[cfg(test)]
    pub(crate) fn of_text(code: &str, text: &str) -> Self {
        Self {
            code: code.to_owned(),
            number: text.split(' ').next().and_then(|number| number.parse().ok()),
            text: text.to_owned(),
            is_fatal: false,
        }
    }

    fn refuses_commit(&self) -> bool {
        match (self.number, self.code.len()) {
            (Some(number), _) => mysql_refuses(number, &self.code),
            // A fatal error ends the session, possibly during the commit.
            (None, 5) => !self.is_fatal && postgres_refuses(&self.code),
            // SQLite refuses a commit with BUSY, LOCKED, FULL or CONSTRAINT.
            _ => matches!(self.sqlite(), Some(5 | 6 | 13 | 19)),
        }
    }
}

/// Whether a non-fatal PostgreSQL error refused the commit. False for lost connections (08),
/// unknown completion (40003), operating system (58) and internal errors (XX).
fn postgres_refuses(code: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    !class.is_empty() && code != "40003" && !["08", "58", "XX"].contains(&class)
}

/// Whether a MySQL error refused the commit: rollback (40), constraint (23), transaction cache
/// full, lock timeout, read-only, group replication hook. False for error 1180: if Galera has lost
/// the other nodes, they may have committed.
fn mysql_refuses(number: u16, code: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    matches!(number, 1197 | 1205 | 1290 | 1836 | 3100) || ["40", "23"].contains(&class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_codes_refuse_a_commit() {
        for code in [
            "40001", "40P01", "23503", "23514", "23P01", "P0001", "57014", "25P02",
        ] {
            assert!(postgres_refuses(code), "{code}");
        }
        for code in ["", "08006", "08007", "40003", "58030", "XX000"] {
            assert!(!postgres_refuses(code), "{code}");
        }
        for (number, code, refuses) in [
            (1213, "40001", true),
            (3101, "40000", true),
            (1290, "HY000", true),
            (1180, "HY000", false),
            (1047, "08S01", false),
            (1053, "08S01", false),
            (1317, "70100", false),
            (1927, "70100", false),
        ] {
            assert_eq!(mysql_refuses(number, code), refuses, "{number}");
        }
        for (code, refuses) in [
            ("5", true),
            ("517", true),
            ("787", true),
            ("13", true),
            ("10", false),
            ("", false),
        ] {
            assert_eq!(ErrorCode::of_text(code, "").refuses_commit(), refuses, "{code}");
        }
    }
}
