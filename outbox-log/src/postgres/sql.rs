//! Names of tables, slot and publication, and helpers for statements.

use outbox_sea_orm::TableNames;
use sea_orm::{DbBackend, Statement, Value};

use super::LogError;
use super::failure::setup;

pub(crate) const LOGGED: i16 = 4;

#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) messages: String,
    pub(crate) blocks: String,
    pub(crate) log: String,
    /// Name of the slot and of the publication, and key of the row in the table `log`.
    pub(crate) slot: String,
}

impl Names {
    pub(crate) fn new(tables: &TableNames, name: &str) -> Result<Self, LogError> {
        Self {
            messages: String::new(),
            blocks: String::new(),
            log: String::new(),
            slot: String::new(),
        }
        .of_tables(tables)
        .named(name)
    }

    pub(crate) fn named(self, name: &str) -> Result<Self, LogError> {
        let is_valid = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        if !(1..=50).contains(&name.len()) || !name.bytes().all(is_valid) {
            return Err(setup(format!(
                "`{name}` cannot name a log; use 1 to 50 characters of a to z, 0 to 9 and _"
            )));
        }
        Ok(Self {
            slot: format!("{name}_log"),
            ..self
        })
    }

    pub(crate) fn of_tables(self, tables: &TableNames) -> Self {
        Self {
            messages: tables.messages(DbBackend::Postgres),
            blocks: tables.table(DbBackend::Postgres, "outbox_blocks"),
            log: tables.table(DbBackend::Postgres, "outbox_log"),
            ..self
        }
    }
}

pub(crate) fn statement<const N: usize>(sql: impl Into<String>, values: [Value; N]) -> Statement {
    Statement::from_sql_and_values(DbBackend::Postgres, sql, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_name_must_be_a_valid_slot_name() {
        let named = |name| Names::new(&TableNames::default(), name).map(|names| names.slot);
        assert_eq!(named("orders_2").unwrap(), "orders_2_log");
        for name in ["", "Orders", "a-b", "ä", &"x".repeat(51), "a'b"] {
            assert!(
                named(name).unwrap_err().to_string().contains("use 1 to 50"),
                "{name}"
            );
        }
    }
}
