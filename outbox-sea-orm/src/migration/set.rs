//! Sets of migrations, also for `outbox-inbox`.

use outbox_core::describe;
use sea_orm::{DatabaseConnection, DbBackend, DbErr};
#[cfg(feature = "migrator")]
use sea_orm_migration::MigrationTrait;

use super::repair;
use super::runner::{create_table, remember, run};
use super::template::SqlMigration;
use crate::connect::check_sessions;
use crate::names::{NameError, TableNames, usage};

#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Migrations {
    /// Unqualified name of the table of applied migrations.
    pub table: &'static str,
    /// Whether the table names belong to an outbox.
    pub of_outbox: bool,
    /// All migrations, in order.
    pub all: fn(&TableNames) -> Vec<SqlMigration>,
}

impl Migrations {
    /// The migrations, for your own migrator.
    #[cfg(feature = "migrator")]
    pub fn boxed(&self, names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
        self.note(names);
        let boxed = |migration| Box::new(migration) as Box<dyn MigrationTrait>;
        (self.all)(names).into_iter().map(boxed).collect()
    }

    fn note(&self, names: &TableNames) {
        if self.of_outbox {
            usage::note(names);
        }
    }

    /// Versions that the migrations record, in order.
    pub fn versions(&self, names: &TableNames) -> Vec<String> {
        let migrations = (self.all)(names);
        migrations
            .iter()
            .map(|migration| migration.name().to_owned())
            .collect()
    }

    /// Plain SQL of the migrations. The SQL also records them as applied.
    pub fn sql(&self, backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
        let (table, migrations) = (names.table(backend, self.table), (self.all)(names));
        let mut sql = Vec::new();
        for migration in &migrations {
            sql.push(migration.up_sql(backend)?);
        }
        sql.push(format!(
            "-- Applied migrations, as recorded by `migrate`.\n{};\n",
            create_table(backend, &table)
        ));
        let inserts = migrations.iter().map(|migration| {
            let version = format!("'{}'", migration.name());
            format!("{};\n", remember(backend, &table, &version))
        });
        sql.extend(inserts);
        Ok(sql.join("\n"))
    }

    /// Applies missing migrations under a lock.
    pub async fn run(&self, db: &DatabaseConnection, names: &TableNames) -> Result<(), DbErr> {
        self.note(names);
        if let Err(error) = run(db, names, self.table, (self.all)(names)).await {
            // No error code identifies a pooler that shares sessions.
            let pooler = check_sessions(db, Some(&error)).await.err();
            return Err(pooler.map_or(error, |pooler| DbErr::Custom(describe(&pooler))));
        }
        if self.table == super::TABLE {
            repair::leases(db, names).await?;
        }
        Ok(())
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __migrations {
    ($set:ident) => {
        /// The migrations, for your own migrator.
        #[cfg(feature = "migrator")]
        #[must_use]
        pub fn migrations(names: &$crate::TableNames) -> Vec<Box<dyn sea_orm_migration::MigrationTrait>> {
            $set.boxed(names)
        }

        /// The versions that [`migrate`] records, in order.
        #[must_use]
        pub fn versions(names: &$crate::TableNames) -> Vec<String> {
            $set.versions(names)
        }

        /// Creates or updates the tables, and inserts missing lease rows. Several processes may
        /// start at once: one process migrates, and the other processes wait.
        ///
        /// # Errors
        ///
        /// The database's error; [`DbErr::Custom`](sea_orm::DbErr::Custom) for a pooler that shares
        /// sessions. After an error, PostgreSQL and SQLite are unchanged. On MySQL, another call
        /// continues.
        pub async fn migrate(db: &sea_orm::DatabaseConnection) -> Result<(), sea_orm::DbErr> {
            migrate_with(db, &$crate::TableNames::new()).await
        }

        /// [`migrate`] with other table names.
        ///
        /// # Errors
        ///
        /// As [`migrate`], and [`DbErr::Custom`](sea_orm::DbErr::Custom) for a schema on SQLite.
        pub async fn migrate_with(
            db: &sea_orm::DatabaseConnection,
            names: &$crate::TableNames,
        ) -> Result<(), sea_orm::DbErr> {
            $set.run(db, names).await
        }
    };
}
