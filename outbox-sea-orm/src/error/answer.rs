//! Database errors that an operator can fix, classified by code. The error text is parsed only for
//! object names, and for two SQLite conditions that share a code.

use std::error::Error;

use sea_orm::{DbErr, RuntimeErr};

use super::code::ErrorCode;

#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseAnswer {
    /// The named table is missing. The name has no schema; it is empty if unknown.
    TableMissing(String),
    ColumnMissing,
    /// The user lacks a privilege on this object.
    Denied(String),
}

impl DatabaseAnswer {
    /// Classifies an error by the first database error among its causes.
    #[must_use]
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut level = Some(error);
        while let Some(error) = level {
            if let Some(answer) = of_level(error) {
                return Some(answer);
            }
            level = error.source();
        }
        None
    }

    pub(crate) fn lacks_tables(error: &(dyn Error + 'static)) -> bool {
        matches!(Self::of(error), Some(Self::TableMissing(_) | Self::ColumnMissing))
    }

    /// Whether `table` is missing. `table` has no prefix.
    #[must_use]
    pub fn is_table_missing(error: &(dyn Error + 'static), table: &str) -> bool {
        matches!(Self::of(error), Some(Self::TableMissing(missing)) if missing.ends_with(table))
    }
}

fn of_level(error: &(dyn Error + 'static)) -> Option<DatabaseAnswer> {
    let answer = match error.downcast_ref::<DbErr>() {
        Some(error) => ErrorCode::of(error),
        None => ErrorCode::of_cause(error.downcast_ref::<RuntimeErr>()?),
    }?;
    match answer.number {
        Some(number) => of_mysql(number, &answer.text),
        None => of_code(&answer.code, &answer.text),
    }
}

fn of_mysql(number: u16, text: &str) -> Option<DatabaseAnswer> {
    match number {
        // Table 'shop.outbox_messages' doesn't exist
        1146 => Some(DatabaseAnswer::TableMissing(name(text.split('\'').nth(1)))),
        1054 => Some(DatabaseAnswer::ColumnMissing),
        // … command denied to user 'relay'@'%' for table `shop`.`outbox_messages`
        1044 | 1142 | 1143 | 1227 | 1370 => Some(DatabaseAnswer::Denied(name(text.split(' ').next_back()))),
        _ => None,
    }
}

fn of_code(code: &str, text: &str) -> Option<DatabaseAnswer> {
    match code {
        // relation "shop.outbox_messages" does not exist
        "42P01" | "3F000" => Some(DatabaseAnswer::TableMissing(name(text.split('"').nth(1)))),
        "42703" => Some(DatabaseAnswer::ColumnMissing),
        // permission denied for table outbox_messages
        "42501" => Some(DatabaseAnswer::Denied(name(text.split(' ').next_back()))),
        // no such table: main.outbox_messages
        "1" => match text.strip_prefix("no such table: ") {
            Some(table) => Some(DatabaseAnswer::TableMissing(name(Some(table)))),
            None => (text.starts_with("no such column") || text.contains("has no column named"))
                .then_some(DatabaseAnswer::ColumnMissing),
        },
        _ => None,
    }
}

fn name(qualified: Option<&str>) -> String {
    let last = qualified.and_then(|name| name.rsplit('.').next());
    last.unwrap_or_default().trim_matches(['"', '\'', '`']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_follow_codes_and_keep_names() {
        use DatabaseAnswer::{ColumnMissing, Denied, TableMissing};
        let messages = || "outbox_messages".to_owned();
        for (code, text, expected) in [
            (
                "42P01",
                "relation \"shop.outbox_messages\" does not exist",
                Some(TableMissing(messages())),
            ),
            (
                "42501",
                "permission denied for table outbox_messages",
                Some(Denied(messages())),
            ),
            ("42703", "column \"name\" does not exist", Some(ColumnMissing)),
            (
                "1",
                "no such table: main.outbox_messages",
                Some(TableMissing(messages())),
            ),
            (
                "1",
                "table outbox_messages has no column named name",
                Some(ColumnMissing),
            ),
            ("1", "near \"SELEC\": syntax error", None),
            ("5", "database is locked", None),
            ("23505", "duplicate key", None),
        ] {
            assert_eq!(of_code(code, text), expected, "{code} {text}");
        }
        for (number, text, expected) in [
            (
                1146,
                "Table 'shop.outbox_messages' doesn't exist",
                Some(TableMissing(messages())),
            ),
            (
                1142,
                "SELECT command denied to user 'relay'@'%' for table `shop`.`outbox_messages`",
                Some(Denied(messages())),
            ),
            (1054, "Unknown column 'name' in 'SELECT'", Some(ColumnMissing)),
            (1213, "Deadlock found", None),
        ] {
            assert_eq!(of_mysql(number, text), expected, "{number} {text}");
        }
    }
}
