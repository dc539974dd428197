//! What a database error says about the transaction: refused, undone, or unknown. Not here: what the caller can do about it ([`crate::kind`]).
//!
//! Invariant: a commit counts as refused only if the database's answer says so. Whatever is not listed here is unknown.

use sea_orm::DbErr;

/// Whether the database has refused a commit, so that nothing is stored: a constraint or trigger that is checked at the commit, a serialization
/// failure, a deadlock, a conflict with another node of a Galera cluster. Otherwise the outcome of a commit that failed is unknown.
///
/// For errors of [`OutboxTransaction::commit`](crate::OutboxTransaction::commit), and of SeaORM's own commit. A save over a pool asks it itself:
/// [`SaveError::Database`](crate::SaveError::Database) and [`SaveError::CommitUnknown`](crate::SaveError::CommitUnknown).
#[must_use]
pub fn is_commit_refused(error: &DbErr) -> bool {
    // A transaction that this crate has refused to commit.
    matches!(error, DbErr::Custom(_)) || driver::is_commit_refused(error)
}

/// Whether MySQL or MariaDB has refused a statement because a transaction is open.
pub(crate) fn is_transaction_in_progress(error: &DbErr) -> bool {
    driver::is_transaction_in_progress(error)
}

/// Whether the database answered with one of these codes (SQLSTATE, or SQLite's result code).
pub(crate) fn has_code(error: &DbErr, codes: &[&str]) -> bool {
    driver::has_code(error, codes)
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod driver {
    use sea_orm::sqlx::error::DatabaseError;
    use sea_orm::{DbErr, RuntimeErr};

    /// The database's answer. `None` if there was none.
    fn answer(error: &DbErr) -> Option<&(dyn DatabaseError + 'static)> {
        match error {
            DbErr::Conn(RuntimeErr::SqlxError(error))
            | DbErr::Exec(RuntimeErr::SqlxError(error))
            | DbErr::Query(RuntimeErr::SqlxError(error)) => error.as_database_error(),
            _ => None,
        }
    }

    pub(super) fn is_commit_refused(error: &DbErr) -> bool {
        let Some(answer) = answer(error) else {
            return false;
        };
        let code = answer.code().unwrap_or_default();
        #[cfg(feature = "postgres")]
        if let Some(answer) = answer.try_downcast_ref::<sea_orm::sqlx::postgres::PgDatabaseError>() {
            // Fatal errors end the session, perhaps while the commit was on its way.
            let is_fatal = answer.severity() != sea_orm::sqlx::postgres::PgSeverity::Error;
            return !is_fatal && super::postgres_refuses(&code);
        }
        #[cfg(feature = "mysql")]
        if let Some(answer) = answer.try_downcast_ref::<sea_orm::sqlx::mysql::MySqlDatabaseError>() {
            return super::mysql_refuses(answer.number(), &code, answer.message());
        }
        super::sqlite_refuses(&code)
    }

    pub(super) fn is_transaction_in_progress(error: &DbErr) -> bool {
        #[cfg(feature = "mysql")]
        if let Some(answer) = answer(error)
            && let Some(answer) = answer.try_downcast_ref::<sea_orm::sqlx::mysql::MySqlDatabaseError>()
        {
            return answer.number() == 1568;
        }
        let _ = error;
        false
    }

    pub(super) fn has_code(error: &DbErr, codes: &[&str]) -> bool {
        let code = answer(error).and_then(DatabaseError::code);
        code.is_some_and(|code| codes.contains(&&*code))
    }
}

/// Without a driver, there are no answers.
#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
mod driver {
    use sea_orm::DbErr;

    pub(super) fn is_commit_refused(_: &DbErr) -> bool {
        false
    }

    pub(super) fn is_transaction_in_progress(_: &DbErr) -> bool {
        false
    }

    pub(super) fn has_code(_: &DbErr, _: &[&str]) -> bool {
        false
    }
}

/// An error that is not fatal ends the transaction. Left out: lost connections, also of poolers (08), statement completion unknown, errors of the
/// operating system (58), and internal errors (XX).
#[cfg(any(feature = "postgres", test))]
fn postgres_refuses(code: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    !class.is_empty() && code != "40003" && !["08", "58", "XX"].contains(&class)
}

/// Rolled back (40: deadlock, also of Galera; group replication), a constraint (23), the transaction cache is full, a lock was not granted, the
/// server is read-only, a hook of group replication. And error 1180, the rollback of a failed commit, unless it gives a status of Galera's
/// provider that means a lost connection (6) or a failed node (7, 8): then the other nodes may have the transaction.
#[cfg(any(feature = "mysql", test))]
fn mysql_refuses(number: u16, code: &str, message: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    let is_galera_lost = || {
        ["error 6 ", "error 7 ", "error 8 "]
            .iter()
            .any(|status| message.contains(status))
    };
    match number {
        1180 => !is_galera_lost(),
        1197 | 1205 | 1290 | 1836 | 3100 => true,
        _ => ["40", "23"].contains(&class),
    }
}

/// Busy, locked, full, constraint.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite", test))]
fn sqlite_refuses(code: &str) -> bool {
    matches!(sqlite_primary(code), Some(5 | 6 | 13 | 19))
}

/// The low byte of a result code of SQLite, which is a decimal number. An SQLSTATE has five characters.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite", test))]
fn sqlite_primary(code: &str) -> Option<u32> {
    let code: u32 = code.parse().ok().filter(|_| code.len() < 5)?;
    Some(code & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_says_that_nothing_is_stored() {
        for code in [
            "40001", "40P01", "23503", "23514", "23P01", "P0001", "57014", "25P02",
        ] {
            assert!(postgres_refuses(code), "{code}");
        }
        for code in ["", "08006", "08007", "40003", "58030", "XX000"] {
            assert!(!postgres_refuses(code), "{code}");
        }
        let lost = "Got error 6 \"No such device or address\" during COMMIT";
        for (number, code, message, refuses) in [
            (1213, "40001", "Deadlock found when trying to get lock", true),
            (
                1180,
                "HY000",
                "Got error 5 \"Input/output error\" during COMMIT",
                true,
            ),
            (1180, "HY000", lost, false),
            (3101, "40000", "Plugin instructed the server to rollback", true),
            (1290, "HY000", "running with the --read-only option", true),
            (1047, "08S01", "WSREP has not yet prepared node", false),
            (1053, "08S01", "Server shutdown in progress", false),
            (1317, "70100", "Query execution was interrupted", false),
            (1927, "70100", "Connection was killed", false),
        ] {
            assert_eq!(
                mysql_refuses(number, code, message),
                refuses,
                "{number} {message}"
            );
        }
        for (code, refuses) in [
            ("5", true),
            ("517", true),
            ("787", true),
            ("13", true),
            ("10", false),
            ("", false),
        ] {
            assert_eq!(sqlite_refuses(code), refuses, "{code}");
        }
    }
}
