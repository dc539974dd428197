//! The migrations of one set of tables, in every form in which they are offered. Also for the tables of `outbox-inbox`.

use sea_orm::sea_query::{Alias, IntoIden};
use sea_orm::{DatabaseConnection, DbBackend, DbErr, DynIden};
use sea_orm_migration::{MigrationName, MigrationTrait};

use super::run::{create_table, remember, run};
use super::template::SqlMigration;
use crate::names::{NameError, TableNames};

/// The migrations of one set of tables. The functions of the migration modules, which have the documentation, call this type.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Migrations {
    /// The table that remembers which migrations were applied, without schema and prefix.
    pub table: &'static str,
    /// The migrations, in their order.
    pub all: fn(&TableNames) -> Vec<SqlMigration>,
}

impl Migrations {
    /// For a migrator of the application's own.
    pub fn boxed(&self, names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
        (self.all)(names)
            .into_iter()
            .map(|migration| Box::new(migration) as Box<dyn MigrationTrait>)
            .collect()
    }

    /// The name of [`Self::table`] with default names, for a migrator of SeaORM.
    pub fn table_iden(&self) -> DynIden {
        Alias::new(self.table).into_iden()
    }

    /// As plain SQL. Also remembers the migrations as applied, so that [`Self::run`] finds nothing left to do.
    pub fn sql(&self, backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
        let (table, migrations) = (names.table(backend, self.table), (self.all)(names));
        let mut sql = Vec::new();
        for migration in &migrations {
            sql.push(migration.up_sql(backend)?);
        }
        sql.push(format!(
            "-- What was applied, as `migrate` remembers it.\n{};\n",
            create_table(backend, &table)
        ));
        let inserts = migrations.iter().map(|migration| {
            let version = format!("'{}'", migration.name());
            format!("{};\n", remember(backend, &table, &version))
        });
        sql.extend(inserts);
        Ok(sql.join("\n"))
    }

    /// Applies under a lock those that were not applied yet, and returns how many those were.
    pub async fn run(&self, db: &DatabaseConnection, names: &TableNames) -> Result<u64, DbErr> {
        run(db, names, self.table, (self.all)(names)).await
    }
}
