//! Distinguishes a rejected settlement from a database failure.
//!
//! Invariant: only a code for a value, constraint, trigger or privilege is a rejection. All other
//! errors are retried.

use outbox_core::StoreError;
use sea_orm::DbErr;

use crate::error::code::ErrorCode;

pub(super) fn of_settlement(source: DbErr) -> StoreError {
    let context = "messages could not be settled";
    let is_of_statement = matches!(source, DbErr::Exec(_) | DbErr::Query(_));
    let answer = ErrorCode::of(&source).filter(|_| is_of_statement);
    let source = Box::new(source);
    match answer {
        Some(answer) if is_refusal(&answer) => StoreError::Refused { context, source },
        _ => StoreError::Database { context, source },
    }
}

fn is_refusal(answer: &ErrorCode) -> bool {
    match answer.code.as_bytes() {
        // SQLSTATEs of a wrong value (22), of a violated constraint (23) or view check (44), of an
        // error raised by a trigger (P0001, 45000), and of a missing privilege (42501).
        [b'2', b'2' | b'3', _, _, _] | [b'4', b'4', _, _, _] | b"P0001" | b"45000" | b"42501" => true,
        // MySQL: privilege; value; CHECK constraint.
        b"42000" | b"HY000" => matches!(answer.number, Some(1142 | 1143 | 1366 | 3819 | 4025)),
        // SQLite: TOOBIG, CONSTRAINT (also `RAISE`), MISMATCH.
        _ => matches!(answer.sqlite(), Some(18..=20)),
    }
}

/// Whether the server is a replica or former primary. MySQL, MariaDB: 1290 for `read_only`, 1836 or
/// 1036 for `innodb_read_only`.
pub(super) fn refuses_to_write(error: &DbErr) -> bool {
    let answer = ErrorCode::of(error).filter(|_| !matches!(error, DbErr::Conn(_)));
    answer.is_some_and(|answer| match answer.number {
        Some(number) => matches!(number, 1036 | 1290 | 1792 | 1836),
        None => answer.code == "25006" || answer.sqlite() == Some(8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permanent_errors_are_refusals() {
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
            assert!(is_refusal(&ErrorCode::of_text(code, text)), "{code} {text}");
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
            assert!(!is_refusal(&ErrorCode::of_text(code, text)), "{code} {text}");
        }
    }
}
