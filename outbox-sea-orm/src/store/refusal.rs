//! Tells a refused verdict from a database that fails.
//!
//! Invariant: an error counts as a refusal only if the database answered with a code that says so: a value, a constraint, a trigger, a right. Everything else is
//! tried again as it is, because time may repair it. Not here: what the relay makes of it, see [`StoreError::Refused`].

use outbox_core::StoreError;
use sea_orm::DbErr;

/// The error of a settlement.
pub(super) fn of_settlement(source: DbErr) -> StoreError {
    let context = "messages could not be settled";
    let is_refused = code_of(&source).is_some_and(|(code, text)| is_refusal(&code, &text));
    let source = Box::new(source);
    if is_refused {
        StoreError::Refused { context, source }
    } else {
        StoreError::Database { context, source }
    }
}

/// SQLSTATE, or SQLite's result code, and the text.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn code_of(error: &DbErr) -> Option<(String, String)> {
    use sea_orm::RuntimeErr;

    let (DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error))) = error
    else {
        return None;
    };
    let error = error.as_database_error()?;
    Some((error.code()?.into_owned(), error.to_string()))
}

/// Without a driver, no error has a code.
#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
fn code_of(_: &DbErr) -> Option<(String, String)> {
    None
}

/// MySQL's own error number begins the text: `1142 (42000): …`.
fn is_refusal(code: &str, text: &str) -> bool {
    match code.as_bytes() {
        // A value, a constraint, a view's check; a trigger's own refusal on PostgreSQL and on MySQL; a right on PostgreSQL.
        [b'2', b'2' | b'3', ..] | [b'4', b'4', ..] | b"P0001" | b"45000" | b"42501" => code.len() == 5,
        // On MySQL: a right on a table or a column; a value; a CHECK.
        b"42000" | b"HY000" => {
            let number = text
                .split(' ')
                .next()
                .and_then(|number| number.parse::<u16>().ok());
            matches!(number, Some(1142 | 1143 | 1366 | 3819 | 4025))
        }
        // On SQLite the low byte is the primary code: TOOBIG, CONSTRAINT (a trigger's `RAISE` as well), MISMATCH.
        _ if code.len() < 5 => code
            .parse::<u32>()
            .is_ok_and(|code| matches!(code & 0xff, 18..=20)),
        _ => false,
    }
}

/// Whether the server answers that it only reads: a replica, or a former primary. PostgreSQL and transactions of MySQL have a code for it;
/// `read_only` of MySQL and MariaDB has the number 1290, their `innodb_read_only` 1836 or 1036. SQLite has 8, with variants in the higher bits.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(super) fn refuses_to_write(error: &DbErr) -> bool {
    use sea_orm::RuntimeErr;

    let (DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error))) = error
    else {
        return false;
    };
    let Some(error) = error.as_database_error() else {
        return false;
    };
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sea_orm::sqlx::mysql::MySqlDatabaseError>() {
        return matches!(error.number(), 1036 | 1290 | 1792 | 1836);
    }
    let is_sqlite = |code: &str| code.len() < 5 && code.parse::<u16>().is_ok_and(|code| code & 0xff == 8);
    error
        .code()
        .is_some_and(|code| code == "25006" || is_sqlite(&code))
}

/// Without a driver, no error says anything.
#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
pub(super) fn refuses_to_write(_: &DbErr) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_time_does_not_repair_is_a_refusal() {
        for (code, text) in [
            ("23514", "violates check constraint"),
            ("22021", "invalid byte sequence"),
            ("P0001", "raised by a trigger"),
            ("42501", "permission denied for table outbox_blocks"),
            ("42000", "1142 (42000): INSERT command denied to user"),
            ("45000", "1644 (45000): raised by a trigger"),
            ("23000", "4025 (23000): CONSTRAINT failed"),
            ("1811", "raised by a trigger"),
            ("275", "CHECK constraint failed"),
        ] {
            assert!(is_refusal(code, text), "{code} {text}");
        }
        for (code, text) in [
            ("40001", "could not serialize access"),
            ("40P01", "deadlock detected"),
            ("25006", "cannot execute UPDATE in a read-only transaction"),
            ("42P01", "relation does not exist"),
            ("53100", "disk full"),
            ("57P01", "terminating connection"),
            ("57014", "canceling statement due to statement timeout"),
            ("HY000", "1290 (HY000): running with the --read-only option"),
            ("HY000", "1205 (HY000): Lock wait timeout exceeded"),
            ("5", "database is locked"),
            ("13", "database or disk is full"),
            ("8", "attempt to write a readonly database"),
        ] {
            assert!(!is_refusal(code, text), "{code} {text}");
        }
    }
}
