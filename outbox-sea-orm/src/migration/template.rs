//! Migrations as one SQL text per database.

use sea_orm::{ConnectionTrait, DbBackend, DbErr};

use crate::names::{NameError, TableNames};

/// One SQL text per database. Placeholders: `{schema}` (quoted, with a dot) and `{prefix}`.
#[derive(Debug, Clone, Copy)]
pub struct SqlTemplates {
    /// SQL for PostgreSQL. Runs in a transaction.
    pub postgres: &'static str,
    /// SQL for MySQL and MariaDB. Statements must be idempotent: DDL cannot be rolled back.
    pub mysql: &'static str,
    /// SQL for SQLite. Statements must be idempotent: SeaORM's migrators use no transaction.
    pub sqlite: &'static str,
}

#[doc(hidden)]
#[macro_export]
macro_rules! __templates {
    ($begin:literal) => {
        $crate::migration::SqlTemplates {
            postgres: include_str!(concat!("sql/", $begin, ".postgres.sql")),
            mysql: include_str!(concat!("sql/", $begin, ".mysql.sql")),
            sqlite: include_str!(concat!("sql/", $begin, ".sqlite.sql")),
        }
    };
}

impl SqlTemplates {
    /// Replaces the placeholders by the table names.
    ///
    /// # Errors
    ///
    /// [`NameError`] if the database does not support the schema.
    pub fn render(&self, backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
        names.check(backend)?;
        let template = match backend {
            DbBackend::Postgres => self.postgres,
            DbBackend::MySql => self.mysql,
            _ => self.sqlite,
        };
        Ok(template
            .replace("{schema}", &names.qualifier(backend))
            .replace("{prefix}", names.prefix()))
    }
}

/// A migration from [`SqlTemplates`].
#[derive(Debug, Clone)]
pub struct SqlMigration {
    name: String,
    up: SqlTemplates,
    names: TableNames,
}

impl SqlMigration {
    /// Creates a migration. Migrators identify it by `name`, with schema and prefix appended unless
    /// default.
    #[must_use]
    pub fn new(name: &'static str, up: SqlTemplates, names: &TableNames) -> Self {
        let name = match (names.schema(), names.prefix()) {
            (None, "") => name.to_owned(),
            (schema, prefix) => format!("{name}@{}.{prefix}", schema.unwrap_or_default()),
        };
        Self {
            name,
            up,
            names: names.clone(),
        }
    }

    /// The recorded version.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The SQL that applies the migration. On MySQL, `DELIMITER` lines may enclose a procedure.
    ///
    /// # Errors
    ///
    /// [`NameError`] if the database does not support the schema.
    pub fn up_sql(&self, backend: DbBackend) -> Result<String, NameError> {
        self.up.render(backend, &self.names)
    }

    pub(super) async fn apply(&self, db: &impl ConnectionTrait) -> Result<(), DbErr> {
        let sql = self.up_sql(db.get_database_backend());
        let sql = sql.map_err(|error| DbErr::Migration(error.to_string()))?;
        db.execute_unprepared(&without_delimiters(&sql)).await?;
        Ok(())
    }
}

/// `DELIMITER` is a command of MySQL's client, not of the server.
fn without_delimiters(sql: &str) -> String {
    sql.replace("DELIMITER //\n", "")
        .replace("END//\nDELIMITER ;\n", "END;\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migration_names_contain_schema_and_prefix() {
        let name = |names| super::super::all(&names)[0].name().to_owned();
        assert_eq!(name(TableNames::new()), "outbox_0001_create_tables");
        assert_eq!(
            name(
                TableNames::new()
                    .with_schema("shop")
                    .unwrap()
                    .with_prefix("b_")
                    .unwrap()
            ),
            "outbox_0001_create_tables@shop.b_"
        );
    }
}
