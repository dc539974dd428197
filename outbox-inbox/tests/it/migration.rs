//! The inbox tables.

use std::path::PathBuf;

use outbox_inbox::migration;
use outbox_inbox::testing::{Harness, Outcome};
use outbox_inbox::{DeadLetterSelection, DeadLetters};
use outbox_sea_orm::{OutboxConfig, TableNames};
use sea_orm::DbBackend;
use sea_orm_migration::{MigrationTrait, MigratorTrait};

use crate::support::{Backend, Script, Step, TestDb, book, placed};

/// With `OUTBOX_BLESS=1` the test rewrites `docs/sql`.
#[test]
fn sql_files_are_up_to_date() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/sql");
    for (backend, name) in [
        (DbBackend::Postgres, "inbox.postgres.sql"),
        (DbBackend::MySql, "inbox.mysql.sql"),
        (DbBackend::Sqlite, "inbox.sqlite.sql"),
    ] {
        let sql = migration::sql(backend, &TableNames::new()).unwrap();
        let path = folder.join(name);
        if std::env::var_os("OUTBOX_BLESS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &sql).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            found, sql,
            "{name} is stale; run the tests with OUTBOX_BLESS=1 and review the difference"
        );
    }
}

#[tokio::test]
async fn inbox_and_outbox_migrations_can_be_combined() {
    struct AppMigrator;

    impl MigratorTrait for AppMigrator {
        fn migrations() -> Vec<Box<dyn MigrationTrait>> {
            let names = TableNames::new();
            let mut migrations = outbox_sea_orm::migration::migrations(&names);
            migrations.extend(migration::migrations(&names));
            migrations
        }
    }

    for backend in [Backend::Sqlite, Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::empty(backend, "mounted").await else {
            continue;
        };
        AppMigrator::up(&test.db, None).await.unwrap();
        AppMigrator::up(&test.db, None).await.unwrap();
        assert_eq!(test.int("SELECT count(*) FROM outbox_leases").await, 64);
        assert_eq!(test.int("SELECT count(*) FROM inbox_messages").await, 0);
    }
}

#[tokio::test]
async fn tables_can_have_other_names() {
    for backend in [Backend::Sqlite, Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::open(backend, "names").await else {
            continue;
        };
        let names = TableNames::new().with_prefix("billing_").unwrap();
        migration::migrate_with(&test.db, &names).await.unwrap();
        outbox_sea_orm::migration::migrate_with(&test.db, &names)
            .await
            .unwrap();
        let harness: Harness = test
            .harness(&Script::new([Step::Ok], Step::Fatal))
            .with_names(names.clone())
            .with_outbox(OutboxConfig::default().with_names(names.clone()));
        assert_eq!(
            harness.deliver::<book>(&placed(1)).await.unwrap(),
            Outcome::Handled
        );
        assert_eq!(
            harness.deliver::<book>(&placed(2)).await.unwrap(),
            Outcome::DeadLettered
        );
        assert_eq!(test.int("SELECT count(*) FROM billing_inbox_messages").await, 2);
        assert_eq!(test.int("SELECT count(*) FROM billing_outbox_messages").await, 1);
        assert_eq!(
            DeadLetters::new(test.db.clone())
                .with_names(names)
                .count(&DeadLetterSelection::all())
                .await
                .unwrap(),
            1
        );
        assert_eq!(test.int("SELECT count(*) FROM inbox_messages").await, 0);
    }
}
