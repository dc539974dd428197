//! Sorts errors by what the caller can do about them.
//!
//! Invariant: an error is only called retryable if the database said so, or never answered. Everything that is not listed here is a refusal. Not
//! here: whether a failed commit has stored something ([`crate::is_commit_refused`]).

use sea_orm::DbErr;
use sea_orm::{RuntimeErr, sqlx};

use crate::error::answer::DatabaseAnswer;
use crate::error::code::ErrorCode;

/// What the caller can do about an error: see [`SaveError::kind`](crate::SaveError::kind) and [`ErrorKind::of`].
///
/// | kind | stored | what to do |
/// |---|---|---|
/// | [`Conflict`](Self::Conflict) | nothing | repeat the save, or the whole transaction, at once |
/// | [`Unavailable`](Self::Unavailable) | nothing | repeat later, with a growing delay; tell the client to come back |
/// | [`CommitUnknown`](Self::CommitUnknown) | everything or nothing | find out, or repeat with a deduplication key |
/// | [`AlreadyRecorded`](Self::AlreadyRecorded) | nothing now, everything earlier | report success |
/// | [`RowMissing`](Self::RowMissing) | nothing | report that there is no such row |
/// | [`Refused`](Self::Refused), [`InvalidEvent`](Self::InvalidEvent) | nothing | correct the input; repeating does not help |
/// | [`Misconfigured`](Self::Misconfigured) | nothing | correct the deployment; repeating does not help until then |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The transaction has lost against a concurrent one: a deadlock, a serialization failure, a lock that was not granted in time.
    Conflict,
    /// The database cannot be reached, refuses everybody (it starts, ends, or has no room left), only reads, or the pool has no free connection.
    /// A TLS connection that fails is of this kind as well: once a program runs, its server is taken to be exchanging a certificate.
    Unavailable,
    /// The connection was lost during the commit. Everything is stored, or nothing.
    CommitUnknown,
    /// An event with the same deduplication key is recorded: an earlier try has committed.
    AlreadyRecorded,
    /// There is no row with this primary key.
    RowMissing,
    /// The database refuses the statement or its data: a constraint, a trigger, a value, a time limit of statements.
    Refused,
    /// The event cannot be stored or published: its payload is too large, say.
    InvalidEvent,
    /// A table, a column or a right is missing, the server refuses the login, the file of SQLite is read-only, or the events would go to the wrong tables, or into no
    /// transaction.
    Misconfigured,
}

impl ErrorKind {
    /// The kind of an error of SeaORM, from any statement, from `begin`, or from the pool. An error of `commit` is of this kind only if
    /// [`is_commit_refused`](crate::is_commit_refused) says yes; otherwise the outcome is unknown.
    #[must_use]
    pub fn of(error: &DbErr) -> Self {
        match error {
            DbErr::ConnectionAcquire(_) => Self::Unavailable,
            DbErr::RecordNotUpdated | DbErr::RecordNotFound(_) => Self::RowMissing,
            _ if DatabaseAnswer::lacks_tables(error) => Self::Misconfigured,
            DbErr::Conn(RuntimeErr::SqlxError(error))
            | DbErr::Exec(RuntimeErr::SqlxError(error))
            | DbErr::Query(RuntimeErr::SqlxError(error)) => kind_of_driver(error),
            DbErr::Conn(_) => Self::Unavailable,
            _ => Self::Refused,
        }
    }

    /// Whether the same work can succeed if it is repeated as it is: [`Self::Conflict`] and [`Self::Unavailable`]. Nothing is stored then.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Conflict | Self::Unavailable)
    }
}

/// Whether the transaction has lost against a concurrent one, so that repeating all of it can succeed at once.
pub(crate) fn is_conflict(error: &DbErr) -> bool {
    ErrorKind::of(error) == ErrorKind::Conflict
}

/// As [`ErrorKind::of`], for an error of sqlx.
#[doc(hidden)]
#[must_use]
pub fn kind_of_driver(error: &sqlx::Error) -> ErrorKind {
    match error {
        sqlx::Error::Database(answer) => kind_of_code(&ErrorCode::of_answer(&**answer)),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => ErrorKind::Unavailable,
        _ => ErrorKind::Refused,
    }
}

fn kind_of_code(answer: &ErrorCode) -> ErrorKind {
    match answer.code.as_bytes() {
        // Whether the statement was completed is unknown, so nothing tells that the transaction is over.
        b"40003" => ErrorKind::Refused,
        // On MySQL this transaction is read-only, as its caller asked for. PostgreSQL has the same code for a server that is.
        b"25006" if answer.number.is_some() => ErrorKind::Refused,
        // Serialization failure, deadlock; lock not available.
        [b'4', b'0', _, _, _] | b"55P03" => ErrorKind::Conflict,
        // Connection lost; resources (disk full, too many connections); shutdown; read-only after a failover.
        [b'0', b'8', _, _, _] | [b'5', b'3', _, _, _] | [b'5', b'7', b'P', b'0', _] | b"25006" => {
            ErrorKind::Unavailable
        }
        // A right; a login that is refused (28), a database that does not exist.
        b"42501" | [b'2', b'8', _, _, _] | b"3D000" => ErrorKind::Misconfigured,
        b"42000" => match answer.number {
            // A right on a database, a table or a column; a database that does not exist.
            Some(1044 | 1049 | 1142 | 1143) => ErrorKind::Misconfigured,
            // Too many connections, or statements per hour, of this user.
            Some(1203 | 1226) => ErrorKind::Unavailable,
            _ => ErrorKind::Refused,
        },
        b"HY000" => match answer.number {
            // A lock that was not granted in time, which MariaDB also reports for NOWAIT; NOWAIT on MySQL; a row that has changed since the snapshot.
            Some(1205 | 3572 | 1020) => ErrorKind::Conflict,
            // Too many connections; shutdown; read-only; disk full.
            Some(1040 | 1053 | 1290 | 1836 | 1021 | 1114) => ErrorKind::Unavailable,
            // Refused logins: this host; an expired password; a locked account.
            Some(1130 | 1820 | 1862 | 3118 | 4151) => ErrorKind::Misconfigured,
            _ => ErrorKind::Refused,
        },
        // BUSY, LOCKED; IOERR, FULL, CANTOPEN; READONLY.
        _ => match answer.sqlite() {
            Some(5 | 6) => ErrorKind::Conflict,
            Some(10 | 13 | 14) => ErrorKind::Unavailable,
            Some(8) => ErrorKind::Misconfigured,
            _ => ErrorKind::Refused,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_by_what_can_be_done() {
        use ErrorKind::{Conflict, Misconfigured, Refused, Unavailable};
        for (code, text, expected) in [
            ("40001", "could not serialize access", Conflict),
            ("40P01", "deadlock detected", Conflict),
            ("40001", "1213 (40001): Deadlock found", Conflict),
            ("40003", "statement completion unknown", Refused),
            ("HY000", "1205 (HY000): Lock wait timeout exceeded", Conflict),
            ("HY000", "3572 (HY000): NOWAIT is set", Conflict),
            ("5", "database is locked", Conflict),
            ("517", "database is locked", Conflict),
            (
                "57P01",
                "terminating connection due to administrator command",
                Unavailable,
            ),
            ("53300", "too many clients already", Unavailable),
            ("08S01", "1053 (08S01): Server shutdown in progress", Unavailable),
            (
                "HY000",
                "1290 (HY000): running with the --read-only option",
                Unavailable,
            ),
            ("8", "attempt to write a readonly database", Misconfigured),
            ("13", "database or disk is full", Unavailable),
            ("42501", "permission denied for table", Misconfigured),
            (
                "42000",
                "1142 (42000): INSERT command denied to user",
                Misconfigured,
            ),
            ("42000", "1064 (42000): error in your SQL syntax", Refused),
            ("28P01", "password authentication failed", Misconfigured),
            ("28000", "1045 (28000): Access denied for user", Misconfigured),
            ("3D000", "database does not exist", Misconfigured),
            ("42000", "1049 (42000): Unknown database", Misconfigured),
            (
                "HY000",
                "1130 (HY000): Host is not allowed to connect",
                Misconfigured,
            ),
            (
                "42000",
                "1203 (42000): more than 'max_user_connections'",
                Unavailable,
            ),
            (
                "25006",
                "cannot execute INSERT in a read-only transaction",
                Unavailable,
            ),
            (
                "25006",
                "1792 (25006): Cannot execute statement in a READ ONLY transaction",
                Refused,
            ),
            ("23505", "duplicate key", Refused),
            ("25P02", "current transaction is aborted", Refused),
            ("57014", "canceling statement due to statement timeout", Refused),
            ("HY000", "1364 (HY000): Field has no default value", Refused),
            ("1555", "UNIQUE constraint failed", Refused),
            ("", "", Refused),
        ] {
            let answer = ErrorCode::of_text(code, text);
            assert_eq!(kind_of_code(&answer), expected, "{code} {text}");
            let is_retryable = matches!(expected, Conflict | Unavailable);
            assert_eq!(expected.is_retryable(), is_retryable);
        }
    }
}
