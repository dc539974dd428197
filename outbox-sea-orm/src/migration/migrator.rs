//! Migrations for SeaORM's migrators (feature `migrator`). A migration cannot be reverted.

use async_trait::async_trait;
use sea_orm::DbErr;
use sea_orm_migration::{MigrationName, MigrationTrait, SchemaManager};

use super::SqlMigration;

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
}
