//! Classifies errors by the caller's next action.
//!
//! Invariant: an error is retryable only if the database reports so or never answered. Unlisted
//! errors are `Refused`.

use sea_orm::DbErr;
use sea_orm::{RuntimeErr, sqlx};

use crate::error::answer::DatabaseAnswer;
use crate::error::code::ErrorCode;

/// Error class by the caller's next action.
///
/// | kind | stored | action |
/// |---|---|---|
/// | [`Conflict`](Self::Conflict) | nothing | repeat the save, or the whole transaction, at once |
/// | [`Unavailable`](Self::Unavailable) | nothing | repeat with backoff; let the client retry |
/// | [`CommitUnknown`](Self::CommitUnknown) | all or nothing | read the model back |
/// | [`AlreadyRecorded`](Self::AlreadyRecorded) | by an earlier attempt | report success |
/// | [`RowMissing`](Self::RowMissing) | nothing | report that the row does not exist |
/// | [`Refused`](Self::Refused) | nothing | correct the input, then retry |
/// | [`InvalidEvent`](Self::InvalidEvent) | nothing | correct the input, then retry |
/// | [`Misconfigured`](Self::Misconfigured) | nothing | correct the deployment, then retry |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The transaction lost a deadlock, a serialization conflict or a lock wait.
    Conflict,
    /// The database is down, starting, stopping, out of resources or read-only, or the pool is
    /// exhausted. Failed TLS counts too, because certificates rotate.
    Unavailable,
    /// The connection was lost during the commit. Repeat the save if its events have a
    /// deduplication key.
    CommitUnknown,
    /// The deduplication key exists: an earlier attempt committed.
    AlreadyRecorded,
    /// No row has this primary key.
    RowMissing,
    /// The database rejected the statement: a constraint, a trigger, an invalid value or syntax, or
    /// a statement timeout.
    Refused,
    /// The event cannot be stored or published, for example because of its size.
    InvalidEvent,
    /// A table, column or privilege is missing, the login is refused, the SQLite file is read-only,
    /// or the events would go to wrong tables or no transaction.
    Misconfigured,
}

impl ErrorKind {
    /// Classifies a SeaORM error. For an error of `commit`, only valid if
    /// [`is_commit_refused`](crate::is_commit_refused) returns true.
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

    /// Whether the same work can succeed if repeated: [`Self::Conflict`] and [`Self::Unavailable`].
    /// With these errors nothing is stored.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Conflict | Self::Unavailable)
    }
}

pub(crate) fn is_conflict(error: &DbErr) -> bool {
    ErrorKind::of(error) == ErrorKind::Conflict
}

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
        // Completion unknown: the transaction may still be open.
        b"40003" => ErrorKind::Refused,
        // On MySQL, the caller requested a read-only transaction.
        b"25006" if answer.number.is_some() => ErrorKind::Refused,
        // Serialization failures (40); lock not available (55P03).
        [b'4', b'0', _, _, _] | b"55P03" => ErrorKind::Conflict,
        // Connection (08); resources (53); shutdown (57P0); read-only after a failover (25006).
        [b'0', b'8', _, _, _] | [b'5', b'3', _, _, _] | [b'5', b'7', b'P', b'0', _] | b"25006" => {
            ErrorKind::Unavailable
        }
        // Privilege (42501); login (28); database missing (3D000).
        b"42501" | [b'2', b'8', _, _, _] | b"3D000" => ErrorKind::Misconfigured,
        b"42000" => match answer.number {
            Some(1044 | 1049 | 1142 | 1143) => ErrorKind::Misconfigured,
            // MySQL: limits of the user account.
            Some(1203 | 1226) => ErrorKind::Unavailable,
            _ => ErrorKind::Refused,
        },
        b"HY000" => match answer.number {
            // MySQL: lock timeout (MariaDB: also NOWAIT); NOWAIT; row changed since the snapshot.
            Some(1205 | 3572 | 1020) => ErrorKind::Conflict,
            // MySQL: too many connections; shutdown; read-only; disk full.
            Some(1040 | 1053 | 1290 | 1836 | 1021 | 1114) => ErrorKind::Unavailable,
            // MySQL: host not allowed; password expired; account locked.
            Some(1130 | 1820 | 1862 | 3118 | 4151) => ErrorKind::Misconfigured,
            _ => ErrorKind::Refused,
        },
        // SQLite: BUSY, LOCKED; IOERR, FULL, CANTOPEN; READONLY.
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
    fn codes_map_to_error_kinds() {
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
