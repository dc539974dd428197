//! Migrations for SeaORM's migrators (feature `migrator`).

use async_trait::async_trait;
use sea_orm::{DbErr, DynIden};
use sea_orm_migration::{MigrationName, MigrationTrait, MigratorTrait, SchemaManager};

use super::{SqlMigration, TABLES, migrations};
use crate::names::TableNames;

/// The migrations with default table names. The table `outbox_migrations` has the applied versions.
///
/// SeaORM's migrators race on an empty database; [`migrate`](super::migrate) uses a lock.
#[derive(Debug, Clone, Copy)]
pub struct OutboxMigrator;

impl MigratorTrait for OutboxMigrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        migrations(&TableNames::new())
    }

    fn migration_table_name() -> DynIden {
        TABLES.table_iden()
    }
}

impl MigrationName for SqlMigration {
    fn name(&self) -> &str {
        self.name()
    }
}

#[async_trait]
#[expect(
    elided_lifetimes_in_paths,
    reason = "async_trait expands an explicit `'_` differently from the trait's signature"
)]
impl MigrationTrait for SqlMigration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        self.apply(manager.get_connection()).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let sql = self.down_sql(manager.get_database_backend());
        self.execute(manager.get_connection(), sql).await
    }
}
