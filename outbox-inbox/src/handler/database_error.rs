//! Formats database errors without values, in any language of the server.
//!
//! A server message is kept only if messages with its code never quote values.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::fmt::Write as _;

use sea_orm::sqlx::error::DatabaseError;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use sea_orm::sqlx::error::ErrorKind;

#[cfg(feature = "mysql")]
use crate::dedup::constraint::key_of_duplicate;

/// MySQL error codes whose messages never contain values, one line per group: connections, logins
/// and permissions; server states; locks, timeouts and resources; missing tables and columns;
/// constraints of columns, and foreign keys.
#[cfg(feature = "mysql")]
const MYSQL_WITHOUT_VALUES: &[&[u16]] = &[
    &[
        1040, 1043, 1044, 1045, 1046, 1047, 1049, 1130, 1142, 1143, 1203, 1226, 1227, 1698, 1820, 1862,
    ],
    &[1053, 1290, 1792, 1836, 1927],
    &[
        1020, 1021, 1114, 1180, 1197, 1205, 1206, 1213, 1317, 1969, 3024, 3100, 3101, 3572,
    ],
    &[1054, 1146],
    &[1048, 1264, 1364, 1406, 1451, 1452, 3819, 4025],
];

pub(super) fn text_of_answer(answer: &(dyn DatabaseError + 'static)) -> String {
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    let code = answer.code().unwrap_or_default();
    #[cfg(feature = "mysql")]
    if let Some(mysql) = answer.try_downcast_ref::<sea_orm::sqlx::mysql::MySqlDatabaseError>() {
        let number = mysql.number();
        let what = if MYSQL_WITHOUT_VALUES
            .iter()
            .any(|numbers| numbers.contains(&number))
        {
            mysql.message().to_owned()
        } else {
            described(answer, &code, key_of_duplicate(mysql.message()), None)
        };
        return format!("{number} ({code}): {what}");
    }
    #[cfg(feature = "postgres")]
    if let Some(postgres) = answer.try_downcast_ref::<sea_orm::sqlx::postgres::PgDatabaseError>() {
        let what = if is_without_values_in_postgres(&code) {
            postgres.message().to_owned()
        } else {
            described(answer, &code, postgres.constraint(), postgres.column())
        };
        return format!("{code}: {what}");
    }
    answer.to_string()
}

/// PostgreSQL quotes values in data errors (22) and raised exceptions (P0), and the statement in
/// syntax errors. Constraint errors (23, 44) are described by names.
#[cfg(any(feature = "postgres", test))]
fn is_without_values_in_postgres(code: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    code != "42601"
        && [
            "08", "0A", "25", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "XX",
        ]
        .contains(&class)
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn described(
    answer: &(dyn DatabaseError + 'static),
    code: &str,
    constraint: Option<&str>,
    column: Option<&str>,
) -> String {
    let mut text = match (answer.kind(), code.get(..2)) {
        (ErrorKind::UniqueViolation, _) => "a unique key already contains this value",
        (ErrorKind::ForeignKeyViolation, _) => "a foreign key is violated",
        (ErrorKind::NotNullViolation, _) => "a column must have a value",
        (ErrorKind::CheckViolation, _) => "a check is violated",
        (_, Some("22")) => "a value does not fit its type or column",
        (_, Some("23" | "44")) => "a constraint is violated",
        (_, Some("P0" | "45")) => "a database trigger or function rejects the statement",
        _ => "the database rejects the statement",
    }
    .to_owned();
    for (what, name) in [
        ("constraint", constraint),
        ("column", column),
        ("table", answer.table()),
    ] {
        if let Some(name) = name {
            let _ = write!(text, ", {what} `{name}`");
        }
    }
    text
}
