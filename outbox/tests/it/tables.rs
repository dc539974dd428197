//! Tests of the tables of outbox and inbox in one database.

use outbox::sea_orm::TableNames;
use outbox::testing::backend_url;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, Statement};
use sea_orm_migration::{MigrationTrait, MigratorTrait};
use tempfile::TempDir;
use uuid::Uuid;

struct Migrator;

impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        outbox::migrations(&TableNames::new())
    }
}

struct Empty {
    db: DatabaseConnection,
    made: Option<(DatabaseConnection, String)>,
    _folder: Option<TempDir>,
}

impl Empty {
    /// All databases: SQLite, and PostgreSQL and MariaDB if their environment variables are set.
    async fn all() -> Vec<Self> {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("shop.db").display());
        let mut all = vec![Self {
            db: pool(url, None).await,
            made: None,
            _folder: Some(folder),
        }];
        let name = format!("facade_{}", &Uuid::now_v7().simple().to_string()[14..]);
        if let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") {
            let server = pool(url.clone(), None).await;
            run(&server, &format!("CREATE SCHEMA {name}")).await;
            all.push(Self {
                db: pool(url, Some(&name)).await,
                made: Some((server, format!("DROP SCHEMA {name} CASCADE"))),
                _folder: None,
            });
        }
        if let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") {
            let server = pool(url.clone(), None).await;
            run(&server, &format!("CREATE DATABASE {name}")).await;
            let (address, _) = url.rsplit_once('/').unwrap();
            all.push(Self {
                db: pool(format!("{address}/{name}"), None).await,
                made: Some((server, format!("DROP DATABASE {name}"))),
                _folder: None,
            });
        }
        all
    }

    async fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) AS n FROM {table}");
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        let row = self.db.query_one_raw(statement).await.unwrap().unwrap();
        row.try_get("", "n").unwrap()
    }

    async fn check_tables(&self) {
        assert_eq!(self.count("outbox_leases").await, 64);
        assert_eq!(self.count("outbox_messages").await, 0);
        assert_eq!(self.count("inbox_messages").await, 0);
    }

    async fn delete(self) {
        if let Some((server, sql)) = self.made {
            self.db.close().await.unwrap();
            run(&server, &sql).await;
        }
    }
}

async fn pool(url: String, schema: Option<&str>) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    options.max_connections(4).sqlx_logging(false);
    if let Some(schema) = schema {
        options.set_schema_search_path(schema);
    }
    Database::connect(options).await.unwrap()
}

async fn run(db: &DatabaseConnection, sql: &str) {
    db.execute_unprepared(sql).await.unwrap();
}

#[tokio::test]
async fn migrate_creates_all_tables_and_is_idempotent() {
    for test in Empty::all().await {
        outbox::migrate(&test.db).await.unwrap();
        test.check_tables().await;
        let leases = "UPDATE outbox_leases SET epoch = 7 WHERE partition_no = 3";
        run(&test.db, leases).await;
        outbox::migrate(&test.db).await.unwrap();
        test.check_tables().await;
        assert_eq!(test.count("outbox_leases WHERE epoch = 7").await, 1);
        test.delete().await;
    }
}

#[tokio::test]
async fn concurrent_processes_can_migrate() {
    for test in Empty::all().await {
        let (one, two) = tokio::join!(outbox::migrate(&test.db), outbox::migrate(&test.db));
        one.unwrap();
        two.unwrap();
        test.check_tables().await;
        test.delete().await;
    }
}

#[tokio::test]
async fn service_migrator_can_create_the_tables() {
    for test in Empty::all().await {
        Migrator::up(&test.db, None).await.unwrap();
        Migrator::up(&test.db, None).await.unwrap();
        test.check_tables().await;
        let all = i64::try_from(Migrator::migrations().len()).unwrap();
        assert_eq!(test.count("seaql_migrations").await, all);
        test.delete().await;
    }
}

#[tokio::test]
async fn migrate_accepts_other_table_names() {
    for test in Empty::all().await {
        let names = TableNames::new().with_prefix("billing_").unwrap();
        outbox::migrate_with(&test.db, &names).await.unwrap();
        assert_eq!(test.count("billing_outbox_leases").await, 64);
        assert_eq!(test.count("billing_inbox_messages").await, 0);
        test.delete().await;
    }
}

#[tokio::test]
async fn dropped_migration_can_be_repeated() {
    for test in Empty::all().await {
        {
            let mut call = std::pin::pin!(outbox::migrate(&test.db));
            std::future::poll_fn(|context| {
                let _ = call.as_mut().poll(context);
                std::task::Poll::Ready(())
            })
            .await;
        }
        outbox::migrate(&test.db).await.unwrap();
        test.check_tables().await;
        test.delete().await;
    }
}
