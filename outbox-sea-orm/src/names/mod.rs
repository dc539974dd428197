//! Table names: a schema and a prefix before fixed names.
//!
//! Invariant: schema and prefix match `[a-z_][a-z0-9_]*`, so they are safe as SQL text.

pub(crate) mod usage;

use sea_orm::DbBackend;

/// Keeps the table names below PostgreSQL's 63 bytes.
const PART_BYTES_MAX: usize = 31;

/// Schema and prefix of the tables. Default: neither (`outbox_messages` and so on).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TableNames {
    schema: Option<String>,
    prefix: String,
}

impl TableNames {
    /// The default names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the schema (MySQL, MariaDB: the database), which must exist. Not for SQLite.
    ///
    /// # Errors
    ///
    /// [`NameError::Malformed`] if the schema does not match `[a-z_][a-z0-9_]{0,30}`.
    pub fn with_schema(mut self, schema: impl Into<String>) -> Result<Self, NameError> {
        self.schema = Some(checked("schema", schema.into())?);
        Ok(self)
    }

    /// Sets a prefix, for several outboxes in one schema. Include a trailing `_` if you want one.
    ///
    /// # Errors
    ///
    /// [`NameError::Malformed`] unless the prefix is empty or matches `[a-z_][a-z0-9_]{0,30}`.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Result<Self, NameError> {
        let prefix = prefix.into();
        self.prefix = if prefix.is_empty() {
            prefix
        } else {
            checked("prefix", prefix)?
        };
        Ok(self)
    }

    /// The schema, if set.
    #[must_use]
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The prefix. Default: empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn is_default(&self) -> bool {
        self.schema.is_none() && self.prefix.is_empty()
    }

    /// `public` counts as default, because PostgreSQL's default search path ends with it.
    pub(crate) fn may_be_default(&self) -> bool {
        self.prefix.is_empty() && self.schema.as_deref().is_none_or(|schema| schema == "public")
    }

    /// Checks that the database supports the schema.
    ///
    /// # Errors
    ///
    /// [`NameError::NoSchemas`] if a schema is set and the database is SQLite.
    pub fn check(&self, backend: DbBackend) -> Result<(), NameError> {
        match &self.schema {
            Some(schema) if backend == DbBackend::Sqlite => Err(NameError::NoSchemas {
                schema: schema.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Name of the message table, as SQL text.
    #[must_use]
    pub fn messages(&self, backend: DbBackend) -> String {
        self.table(backend, "outbox_messages")
    }

    /// Name of the table with one row per aggregate and its last sequence, as SQL text.
    #[must_use]
    pub fn aggregates(&self, backend: DbBackend) -> String {
        self.table(backend, "outbox_aggregates")
    }

    /// Name of any table, as SQL text: `"shop".billing_inbox_messages`. The schema is quoted,
    /// because it may be a reserved word.
    #[must_use]
    pub fn table(&self, backend: DbBackend, name: &'static str) -> String {
        format!("{}{}", self.qualifier(backend), self.unqualified(name))
    }

    /// Table name without the schema, for indexes and constraints.
    #[must_use]
    pub fn unqualified(&self, name: &'static str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn qualifier(&self, backend: DbBackend) -> String {
        match (&self.schema, backend) {
            (None, _) => String::new(),
            (Some(schema), DbBackend::MySql) => format!("`{schema}`."),
            (Some(schema), _) => format!("\"{schema}\"."),
        }
    }
}

fn checked(what: &'static str, name: String) -> Result<String, NameError> {
    let first = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let rest = name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if first && rest && name.len() <= PART_BYTES_MAX {
        return Ok(name);
    }
    Err(NameError::Malformed {
        what,
        name: name.escape_debug().to_string(),
    })
}

/// Why a schema or prefix is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name does not match the pattern.
    #[error("{what} `{name}` is malformed; use `[a-z_][a-z0-9_]*`, at most 31 bytes")]
    Malformed {
        /// What is malformed: `schema` or `prefix`.
        what: &'static str,
        /// The malformed name, escaped.
        name: String,
    },
    /// SQLite has no schemas.
    #[error("SQLite has no schemas; use a prefix instead of schema `{schema}`")]
    NoSchemas {
        /// The schema that was set.
        schema: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_words_are_quoted() {
        let names = TableNames::new()
            .with_schema("order")
            .unwrap()
            .with_prefix("billing_")
            .unwrap();
        assert_eq!(
            names.messages(DbBackend::Postgres),
            "\"order\".billing_outbox_messages"
        );
        assert_eq!(
            names.table(DbBackend::MySql, "inbox_messages"),
            "`order`.billing_inbox_messages"
        );
    }

    #[test]
    fn injection_is_refused() {
        for name in [
            "a\"b",
            "a b",
            "a;",
            "a.b",
            "A",
            "1a",
            "a`",
            "ü",
            "a\0",
            "a-b",
            &"x".repeat(32),
        ] {
            assert!(
                matches!(
                    TableNames::new().with_schema(name),
                    Err(NameError::Malformed { .. })
                ),
                "schema {name:?}"
            );
            assert!(
                matches!(
                    TableNames::new().with_prefix(name),
                    Err(NameError::Malformed { .. })
                ),
                "prefix {name:?}"
            );
        }
        assert!(TableNames::new().with_schema("").is_err());
        assert!(TableNames::new().with_prefix("").is_ok());
        assert!(TableNames::new().with_prefix("x".repeat(31)).is_ok());
    }

    #[test]
    fn sqlite_has_no_schemas() {
        let names = TableNames::new().with_schema("shop").unwrap();
        assert_eq!(
            names.check(DbBackend::Sqlite),
            Err(NameError::NoSchemas {
                schema: "shop".to_owned()
            })
        );
        assert_eq!(names.check(DbBackend::Postgres), Ok(()));
    }
}
