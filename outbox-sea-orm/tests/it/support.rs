//! Databases for tests, with separate tables per test. SQLite is always tested. Servers are tested
//! only if `OUTBOX_TEST_POSTGRES_URL` or `OUTBOX_TEST_MARIADB_URL` is set.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{
    FetchRequest, Fetched, FetchedRow, IntoEvents, Lease, OutboxStore, OwnerId, Settlement, SetupProblem,
    Verdict, WaitingRequest,
};
use outbox_sea_orm::migration;
use outbox_sea_orm::{OutboxConfig, OutboxConnection, RecordError, SqlStore, TableNames};
use outbox_testing::backend_url;
use sea_orm::sqlx::sqlite::SqliteSynchronous;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement};
use tempfile::TempDir;
use uuid::Uuid;

pub const TTL: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    SqliteMemory,
    Postgres,
    MariaDb,
}

/// Generates one test per database from functions with a [`TestDb`].
#[macro_export]
macro_rules! on_every_backend {
    ($($name:ident),* $(,)?) => {
        $crate::on_every_backend!(@module sqlite, Sqlite, [$($name),*]);
        $crate::on_every_backend!(@module sqlite_memory, SqliteMemory, [$($name),*]);
        $crate::on_every_backend!(@module postgres, Postgres, [$($name),*]);
        $crate::on_every_backend!(@module mariadb, MariaDb, [$($name),*]);
    };
    (@module $module:ident, $backend:ident, [$($name:ident),*]) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let test = stringify!($name);
                    if let Some(db) = $crate::support::TestDb::open($crate::support::Backend::$backend, test).await {
                        super::$name(db).await;
                    }
                }
            )*
        }
    };
}

#[derive(Debug)]
pub struct TestDb {
    pub backend: Backend,
    pub db: DatabaseConnection,
    pub names: TableNames,
    url: String,
    _dir: Option<TempDir>,
}

impl TestDb {
    pub async fn open(backend: Backend, test: &str) -> Option<Self> {
        let test = Self::empty(backend, test).await?;
        let migrated = migration::migrate_with(&test.db, &test.names).await;
        migrated.expect("tables can be created");
        Some(test)
    }

    pub async fn empty(backend: Backend, test: &str) -> Option<Self> {
        let id = Uuid::now_v7().simple().to_string();
        let name = format!("t{}", &id[14..]);
        let (url, dir) = match backend {
            Backend::Sqlite => {
                let dir = tempfile::tempdir().expect("a temporary folder");
                (
                    format!("sqlite://{}?mode=rwc", dir.path().join("outbox.db").display()),
                    Some(dir),
                )
            }
            Backend::SqliteMemory => ("sqlite::memory:".to_owned(), None),
            Backend::Postgres => (backend_url("OUTBOX_TEST_POSTGRES_URL")?, None),
            Backend::MariaDb => (backend_url("OUTBOX_TEST_MARIADB_URL")?, None),
        };
        let db = connect(&url, backend, |_| {}).await;
        let names = match backend {
            Backend::Sqlite => {
                db.execute_unprepared("PRAGMA journal_mode = WAL")
                    .await
                    .expect("WAL");
                TableNames::new()
            }
            Backend::SqliteMemory => TableNames::new(),
            Backend::Postgres => {
                db.execute_unprepared(&format!("CREATE SCHEMA {name}"))
                    .await
                    .expect("a schema");
                TableNames::new().with_schema(&name).expect("the name is valid")
            }
            Backend::MariaDb => TableNames::new()
                .with_prefix(format!("{name}_"))
                .expect("the name is valid"),
        };
        println!("{test} uses {backend:?} with {names:?}");
        Some(Self {
            backend,
            db,
            names,
            url,
            _dir: dir,
        })
    }

    /// Opens another pool. Not for SQLite in memory, where each connection has a separate database.
    pub async fn connect_again(&self, options: impl FnOnce(&mut ConnectOptions)) -> DatabaseConnection {
        connect(&self.url, self.backend, options).await
    }

    pub async fn one_connection(&self) -> DatabaseConnection {
        let one = |options: &mut ConnectOptions| {
            options.max_connections(1);
        };
        self.connect_again(one).await
    }

    pub async fn connect_through(
        &self,
        url: &str,
        options: impl FnOnce(&mut ConnectOptions),
    ) -> DatabaseConnection {
        connect(url, self.backend, options).await
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn sql_backend(&self) -> DbBackend {
        self.db.get_database_backend()
    }

    pub fn messages(&self) -> String {
        self.names.messages(self.sql_backend())
    }

    pub fn blocks(&self) -> String {
        self.names.table(self.sql_backend(), "outbox_blocks")
    }

    pub fn leases(&self) -> String {
        self.names.table(self.sql_backend(), "outbox_leases")
    }

    pub fn config(&self) -> OutboxConfig {
        OutboxConfig::default().with_names(self.names.clone())
    }

    pub fn outbox(&self) -> OutboxConnection {
        OutboxConnection::new(self.db.clone(), self.config())
    }

    pub fn store(&self) -> SqlStore {
        SqlStore::new(self.db.clone())
            .with_names(&self.names)
            .expect("the database can hold the names")
    }

    pub async fn record(&self, events: impl IntoEvents) -> Result<(), RecordError> {
        let tx = self.outbox().begin().await.map_err(RecordError::Database)?;
        outbox_sea_orm::record(&tx, events).await?;
        tx.commit().await.map_err(RecordError::Database)
    }

    pub async fn execute(&self, sql: &str) {
        self.db
            .execute_unprepared(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub async fn int(&self, sql: &str) -> i64 {
        int(&self.db, sql).await
    }

    pub async fn lease_all(&self) -> (OwnerId, Vec<Lease>) {
        let owner = OwnerId::fresh();
        let leases = self
            .store()
            .acquire(owner, TTL, 64)
            .await
            .expect("acquire answers");
        assert_eq!(leases.len(), 64);
        (owner, leases)
    }

    /// Returns the preflight's warnings, except about durability: the test servers do not sync.
    pub async fn warnings(&self, store: &SqlStore) -> Vec<SetupProblem> {
        let mut warnings = store.preflight(true).await.expect("the preflight passes");
        warnings.retain(|warning| !warning.seen.contains("so a crash loses commits"));
        warnings
    }

    pub async fn set_back_row_ids(&self) {
        let messages = self.messages();
        let sql = match self.sql_backend() {
            DbBackend::Postgres => {
                format!("SELECT pg_catalog.setval(pg_get_serial_sequence('{messages}', 'row_id'), 1, false)")
            }
            DbBackend::MySql => format!("ALTER TABLE {messages} AUTO_INCREMENT = 1"),
            _ => "UPDATE sqlite_sequence SET seq = 0".to_owned(),
        };
        self.execute(&sql).await;
    }

    pub async fn set_clock_back(&self, by: Duration) {
        let micros = by.as_micros();
        let later = match self.sql_backend() {
            DbBackend::Postgres => format!(
                "expires_at OPERATOR(pg_catalog.+) ({micros} OPERATOR(pg_catalog.*) interval '1 microsecond')"
            ),
            DbBackend::MySql => format!("TIMESTAMPADD(MICROSECOND, {micros}, expires_at)"),
            _ => format!("expires_at + {micros}"),
        };
        for table in [
            self.leases(),
            self.names.table(self.sql_backend(), "outbox_relays"),
        ] {
            self.execute(&format!("UPDATE {table} SET expires_at = {later}"))
                .await;
        }
    }

    pub async fn expire_leases(&self) {
        let past = match self.sql_backend() {
            DbBackend::Postgres => "clock_timestamp() - interval '1 second'",
            DbBackend::MySql => "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND",
            _ => "0",
        };
        self.execute(&format!("UPDATE {} SET expires_at = {past}", self.leases()))
            .await;
    }

    pub async fn scan(&self, leases: &[Lease], limit: u32) -> Fetched {
        let limit = limit.try_into().expect("limits of tests are positive");
        self.store()
            .fetch(FetchRequest {
                leases,
                limit,
                bytes: usize::MAX,
                in_flight: &[],
            })
            .await
            .expect("fetch answers")
    }

    pub async fn fetch_waiting(&self, leases: &[Lease]) -> Fetched {
        self.store()
            .fetch_waiting(WaitingRequest {
                leases,
                limit: NonZeroU32::new(1_000).expect("positive"),
                per_aggregate: NonZeroU32::new(100).expect("positive"),
                bytes: usize::MAX,
                in_flight: &[],
                excluding: &[],
            })
            .await
            .expect("fetch_waiting answers")
    }

    pub async fn fetch_all(&self) -> Vec<FetchedRow> {
        let leases: Vec<Lease> = (0..64).map(|partition| Lease { partition, epoch: 0 }).collect();
        self.scan(&leases, 1_000_000).await.due
    }

    pub async fn settle(&self, leases: &[Lease], rows: &[FetchedRow], verdict: Verdict) -> usize {
        self.store()
            .settle(leases, &settlements(rows, &verdict))
            .await
            .expect("settle answers")
    }
}

pub fn settlements(rows: &[FetchedRow], verdict: &Verdict) -> Vec<Settlement> {
    rows.iter().map(|row| row.with_verdict(verdict.clone())).collect()
}

pub async fn int(db: &DatabaseConnection, sql: &str) -> i64 {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db
        .query_one_raw(statement)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    row.expect("a row").try_get_by_index(0).expect("an integer")
}

async fn connect(
    url: &str,
    backend: Backend,
    change: impl FnOnce(&mut ConnectOptions),
) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    let connections = match backend {
        Backend::SqliteMemory => 1,
        Backend::Sqlite => 4,
        Backend::Postgres | Backend::MariaDb => 16,
    };
    options
        .max_connections(connections)
        .sqlx_logging(false)
        .acquire_timeout(Duration::from_secs(60));
    options.map_sqlx_sqlite_opts(|options| {
        options
            .busy_timeout(Duration::from_secs(60))
            .synchronous(SqliteSynchronous::Off)
    });
    change(&mut options);
    Database::connect(options)
        .await
        .expect("the database can be reached")
}

pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(outcome.is_ok(), "{what} takes too long");
}
