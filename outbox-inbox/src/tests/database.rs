//! Databases for tests of what the public API does not show: SQLite always, PostgreSQL and MariaDB if their variables are set.

use std::time::Duration;

use outbox_sea_orm::TableNames;
use outbox_testing::backend_url;
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DatabaseTransaction, DbBackend,
};
use tempfile::TempDir;
use uuid::Uuid;

use crate::database;
use crate::dedup::sql::InboxSql;

/// Inbox tables of one test.
pub(crate) struct TestDb {
    pub(crate) db: DatabaseConnection,
    pub(crate) names: TableNames,
    pub(crate) sql: InboxSql,
    _dir: Option<TempDir>,
}

impl TestDb {
    /// Tables on each database.
    pub(crate) async fn open_all() -> Vec<Self> {
        let dir = tempfile::tempdir().unwrap();
        let sqlite = format!("sqlite://{}?mode=rwc", dir.path().join("inbox.db").display());
        let mut all = vec![Self::open(sqlite, Some(dir)).await];
        for variable in ["OUTBOX_TEST_POSTGRES_URL", "OUTBOX_TEST_MARIADB_URL"] {
            if let Some(url) = backend_url(variable) {
                all.push(Self::open(url, None).await);
            }
        }
        all
    }

    async fn open(url: String, dir: Option<TempDir>) -> Self {
        let mut options = ConnectOptions::new(url);
        options
            .max_connections(4)
            .sqlx_logging(false)
            .acquire_timeout(Duration::from_secs(60));
        let db = Database::connect(options).await.unwrap();
        let backend = db.get_database_backend();
        let name = format!("u{}", &Uuid::now_v7().simple().to_string()[14..]);
        let names = match backend {
            DbBackend::Postgres => {
                db.execute_unprepared(&format!("CREATE SCHEMA {name}"))
                    .await
                    .unwrap();
                TableNames::new().with_schema(name).unwrap()
            }
            DbBackend::MySql => TableNames::new().with_prefix(format!("{name}_")).unwrap(),
            _ => TableNames::new(),
        };
        crate::migration::migrate_with(&db, &names).await.unwrap();
        Self {
            sql: InboxSql::new(backend, &names, Duration::from_secs(3600)),
            db,
            names,
            _dir: dir,
        }
    }

    pub(crate) async fn begin(&self) -> DatabaseTransaction {
        let database = database::Database::inspect(self.db.clone()).await.unwrap();
        database.begin().await.unwrap()
    }
}
