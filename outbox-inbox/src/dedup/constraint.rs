//! Strategy *constraint*: a unique violation of a named constraint is a duplicate.
//!
//! If the violated constraint is in doubt, the error is a failure: a failure is visible, a lost
//! effect is not.
//!
//! | database | reports | name |
//! |---|---|---|
//! | PostgreSQL | constraint or unique index | `reservations_pkey` |
//! | MySQL | table and key | `reservations.PRIMARY`, or `PRIMARY` of any table |
//! | MariaDB | key only | `PRIMARY` of any table; better a named unique key |
//! | SQLite | columns | `reservations.order_id, reservations.line` |
//! | SQLite, index over expressions | index | `reservations_lower` |

use std::error::Error;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use {
    sea_orm::{DbErr, RuntimeErr, sqlx},
    std::sync::Arc,
};

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn violated(error: &(dyn Error + 'static), names: &[&str]) -> bool {
    let mut next = Some(error);
    let causes = std::iter::from_fn(|| {
        let error = next?;
        next = error.source();
        Some(error)
    });
    causes
        .filter_map(driver_error)
        .find_map(sqlx::Error::as_database_error)
        .filter(|error| error.is_unique_violation())
        .and_then(|error| violation(error.constraint(), error.message()))
        .is_some_and(|violation| names.iter().any(|name| violation.is_of(name)))
}

#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
pub(crate) fn violated(_: &(dyn Error + 'static), _: &[&str]) -> bool {
    false
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn driver_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a sqlx::Error> {
    let runtime = match error.downcast_ref::<DbErr>() {
        Some(DbErr::Conn(error) | DbErr::Exec(error) | DbErr::Query(error)) => Some(error),
        _ => error.downcast_ref::<RuntimeErr>(),
    };
    match runtime {
        Some(RuntimeErr::SqlxError(error)) => Some(error),
        _ => error
            .downcast_ref::<sqlx::Error>()
            .or_else(|| error.downcast_ref::<Arc<sqlx::Error>>().map(|error| &**error)),
    }
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
#[derive(Debug, PartialEq, Eq)]
enum Violation<'a> {
    Constraint(&'a str),
    /// Name of a key. MySQL since 8.0.19 puts the table before the key, MariaDB does not.
    Key(&'a str),
    Columns(&'a str),
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn violation<'a>(constraint: Option<&'a str>, message: &'a str) -> Option<Violation<'a>> {
    if let Some(name) = constraint {
        return Some(Violation::Constraint(name));
    }
    if let Some(what) = message.strip_prefix("UNIQUE constraint failed: ") {
        let index = what
            .strip_prefix("index '")
            .and_then(|name| name.strip_suffix('\''));
        return Some(index.map_or(Violation::Columns(what), Violation::Constraint));
    }
    key_of_duplicate(message).map(Violation::Key)
}

/// Finds the key in a message of any language: the message quotes the value first and the key last.
/// The value may contain quotes.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn key_of_duplicate(message: &str) -> Option<&str> {
    if message.starts_with("Duplicate entry") {
        let (_, key) = message.rsplit_once(" for key '")?;
        return key.strip_suffix('\'');
    }
    let (before, _) = message.rsplit_once('\'')?;
    let (before, key) = before.rsplit_once('\'')?;
    (before.matches('\'').count() >= 2).then_some(key)
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
impl Violation<'_> {
    fn is_of(&self, name: &str) -> bool {
        match *self {
            Self::Constraint(constraint) => constraint == name,
            Self::Key(key) => key == name || key.split_once('.').is_some_and(|(_, key)| key == name),
            Self::Columns(columns) => columns
                .split(',')
                .map(str::trim)
                .eq(name.split(',').map(str::trim)),
        }
    }
}

#[cfg(test)]
mod tests {
    use sea_orm::{ConnectionTrait as _, DbBackend, TransactionTrait as _};

    use super::*;
    use crate::tests::database::TestDb;
    use crate::tests::database::on_every_database;

    #[track_caller]
    fn check(constraint: Option<&str>, message: &str, name: &str, expected: bool) {
        let found = violation(constraint, message).is_some_and(|violation| violation.is_of(name));
        assert_eq!(found, expected, "{constraint:?} {message:?} {name:?}");
    }

    #[test]
    fn names_are_compared_whole() {
        let postgres = |constraint, name, expected| {
            let message = "duplicate key value violates unique constraint \"a\"";
            check(Some(constraint), message, name, expected);
        };
        postgres("reservations_pkey", "reservations_pkey", true);
        postgres("reservations_pkey", "reservations", false);
        postgres("pkey", "reservations_pkey", false);
        postgres("Pkey", "pkey", false);

        let mysql = |message, name, expected| check(None, message, name, expected);
        let old = "Duplicate entry '7' for key 'PRIMARY'";
        mysql(old, "PRIMARY", true);
        mysql(old, "reservations.PRIMARY", false);
        let new = "Duplicate entry '7' for key 'reservations.PRIMARY'";
        mysql(new, "PRIMARY", true);
        mysql(new, "reservations.PRIMARY", true);
        mysql(new, "orders.PRIMARY", false);
        mysql(new, "RIMARY", false);
        mysql(new, "", false);
        let value = "Duplicate entry 'x' for key 'a'' for key 'orders.b'";
        mysql(value, "b", true);
        mysql(value, "a", false);
        mysql("Duplicate entry '' for key 'a'x", "a", false);
        mysql("Doppelter Eintrag 'x' für Schlüssel 'a'", "a", true);
        mysql("'x' は索引 'orders.a' で重複しています。", "a", true);
        mysql("Duplikalt bejegyzes 'it's 'a'' a 'b' kulcs szerint", "a", false);
        mysql("Duplikalt bejegyzes 'it's 'a'' a 'b' kulcs szerint", "b", true);
        mysql("Doppelter Eintrag 'a' für Schlüssel 1", "a", false);

        let sqlite = |message, name, expected| check(None, message, name, expected);
        let columns = "UNIQUE constraint failed: t.a, t.b";
        sqlite(columns, "t.a, t.b", true);
        sqlite(columns, "t.a,t.b", true);
        sqlite(columns, "t.a", false);
        sqlite(columns, "t.b, t.a", false);
        sqlite(columns, "t.a, t.b, t.c", false);
        sqlite("UNIQUE constraint failed: t.ab", "t.a", false);
        sqlite("UNIQUE constraint failed: index 'lower'", "lower", true);
        sqlite("UNIQUE constraint failed: index 'lower'", "index", false);
        check(None, "something else", "something else", false);
    }

    const TABLE: &str = "CREATE TABLE reservations (id BIGINT PRIMARY KEY, order_id BIGINT NOT NULL CHECK (order_id > 0), \
                         line BIGINT NOT NULL, CONSTRAINT one_per_line UNIQUE (order_id, line))";

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Transparent(#[from] DbErr);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot reserve")]
    struct Wrapped(#[source] DbErr);

    async fn only_named_constraint_is_a_duplicate(db: TestDb) {
        db.db.execute_unprepared(TABLE).await.unwrap();
        let (primary, unique) = match db.db.get_database_backend() {
            DbBackend::Postgres => ("reservations_pkey", "one_per_line"),
            DbBackend::MySql => ("PRIMARY", "one_per_line"),
            _ => ("reservations.id", "reservations.order_id, reservations.line"),
        };
        let fail = async |values: &str| {
            let tx = db.db.begin().await.unwrap();
            for values in ["1, 1, 1", values] {
                let sql = format!("INSERT INTO reservations VALUES ({values})");
                if let Err(error) = tx.execute_unprepared(&sql).await {
                    return error;
                }
            }
            panic!("{values} violates nothing");
        };
        let again = fail("1, 2, 2").await;
        assert!(violated(&again, &[primary]), "{again}");
        assert!(violated(&again, &["other", primary]), "{again}");
        assert!(!violated(&again, &[unique, "reservations", "id", ""]), "{again}");
        assert!(!violated(&again, &[]), "{again}");
        let line = fail("2, 1, 1").await;
        assert!(violated(&line, &[unique]), "{line}");
        assert!(!violated(&line, &[primary, "one_per", "per_line"]), "{line}");
        assert!(violated(&Wrapped(line.clone()), &[unique]));
        assert!(violated(&Transparent(line), &[unique]));
        for other in ["2, NULL, 1", "2, 0, 1"] {
            let other = fail(other).await;
            assert!(!violated(&other, &[primary, unique]), "{other}");
        }
        let missing = db.db.execute_unprepared("INSERT INTO no_such_table VALUES (1)");
        assert!(!violated(&missing.await.unwrap_err(), &[primary, unique]));
        db.close().await;
    }

    on_every_database!(only_named_constraint_is_a_duplicate);

    #[test]
    fn other_error_violates_no_constraint() {
        assert!(!violated(
            &std::io::Error::other("UNIQUE constraint failed: t.a"),
            &["t.a"]
        ));
    }
}
