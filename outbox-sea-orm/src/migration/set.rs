//! The migrations of one set of tables, in every form in which they are offered. Also for the tables of `outbox-inbox`.

use outbox_core::describe;
use sea_orm::sea_query::{Alias, IntoIden};
use sea_orm::{DatabaseConnection, DbBackend, DbErr, DynIden};
#[cfg(feature = "migrator")]
use sea_orm_migration::MigrationTrait;

use super::repair;
use super::runner::{create_table, remember, run};
use super::template::SqlMigration;
use crate::connect::check_sessions;
use crate::names::{NameError, TableNames, usage};

/// The migrations of one set of tables. The functions of the migration modules, which have the documentation, call this type.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Migrations {
    /// The table that remembers which migrations were applied, without schema and prefix.
    pub table: &'static str,
    /// Whether the names of the tables are names of an outbox, which this process then uses.
    pub of_outbox: bool,
    /// The migrations, in their order.
    pub all: fn(&TableNames) -> Vec<SqlMigration>,
}

impl Migrations {
    /// For a migrator of the application's own.
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

    /// The versions that are recorded, in their order.
    pub fn versions(&self, names: &TableNames) -> Vec<String> {
        let migrations = (self.all)(names);
        migrations
            .iter()
            .map(|migration| migration.name().to_owned())
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
        self.note(names);
        let applied = match run(db, names, self.table, (self.all)(names)).await {
            Ok(applied) => applied,
            // A pooler that shares sessions has many errors, and none names it.
            Err(error) => {
                let pooler = check_sessions(db, Some(&error)).await.err();
                return Err(pooler.map_or(error, |pooler| DbErr::Custom(describe(&pooler))));
            }
        };
        if self.table == super::TABLE {
            repair::leases(db, names).await?;
        }
        Ok(applied)
    }
}

/// The functions of a module of migrations, over a [`Migrations`] of the module.
#[doc(hidden)]
#[macro_export]
macro_rules! __migrations {
    ($set:ident) => {
        /// The migrations, for the application's own migrator.
        #[cfg(feature = "migrator")]
        #[must_use]
        pub fn migrations(names: &$crate::TableNames) -> Vec<Box<dyn sea_orm_migration::MigrationTrait>> {
            $set.boxed(names)
        }

        /// The versions that [`migrate`] records, in their order.
        #[must_use]
        pub fn versions(names: &$crate::TableNames) -> Vec<String> {
            $set.versions(names)
        }

        /// Creates or updates the tables. The tables of the outbox also get lease rows that are missing, as after a `TRUNCATE`. Several
        /// processes may start at once: the first one does the work, the others wait for it.
        ///
        /// # Errors
        ///
        /// The database's error; [`DbErr::Custom`](sea_orm::DbErr::Custom) if the cause is a pooler that shares sessions. On PostgreSQL and SQLite nothing has changed then; on MySQL, call again to continue.
        pub async fn migrate(db: &sea_orm::DatabaseConnection) -> Result<(), sea_orm::DbErr> {
            migrate_with(db, &$crate::TableNames::new()).await
        }

        /// [`migrate`] with other table names.
        ///
        /// # Errors
        ///
        /// As [`migrate`], and names that the database cannot hold as [`DbErr::Custom`](sea_orm::DbErr::Custom).
        pub async fn migrate_with(
            db: &sea_orm::DatabaseConnection,
            names: &$crate::TableNames,
        ) -> Result<(), sea_orm::DbErr> {
            migrate_and_count(db, names).await.map(drop)
        }

        /// [`migrate_with`], and returns how many migrations this call has applied: 0 if another process had applied them before it
        /// got the lock.
        ///
        /// # Errors
        ///
        /// As [`migrate_with`].
        pub async fn migrate_and_count(
            db: &sea_orm::DatabaseConnection,
            names: &$crate::TableNames,
        ) -> Result<u64, sea_orm::DbErr> {
            $set.run(db, names).await
        }
    };
}
