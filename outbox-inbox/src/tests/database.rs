//! Databases for tests of private parts.

use std::time::Duration;

use outbox_core::{Aggregate, Headers, Incoming, Message, MessageId};
use outbox_sea_orm::TableNames;
use sea_orm::{
    ConnectOptions, ConnectionTrait as _, Database as Pool, DatabaseConnection, DatabaseTransaction,
};
use tempfile::TempDir;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::Database;
use crate::dedup::sql::InboxSql;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MariaDb,
}

pub(crate) struct TestDb {
    pub(crate) database: Database,
    pub(crate) db: DatabaseConnection,
    pub(crate) names: TableNames,
    pub(crate) sql: InboxSql,
    drop: Option<(String, String)>,
    _dir: Option<TempDir>,
}

impl TestDb {
    pub(crate) async fn open(kind: Kind) -> Option<Self> {
        Self::open_with(kind, |_| {}).await
    }

    pub(crate) async fn open_with(kind: Kind, configure: impl FnOnce(&mut ConnectOptions)) -> Option<Self> {
        let id = Uuid::now_v7().simple().to_string();
        let name = format!("d{}", &id[14..]);
        let mut dir = None;
        let (url, word) = match kind {
            Kind::Sqlite => {
                let dir = dir.insert(tempfile::tempdir().unwrap());
                let path = dir.path().join("inbox.db");
                (format!("sqlite://{}?mode=rwc", path.display()), None)
            }
            Kind::Postgres => (
                outbox_testing::backend_url("OUTBOX_TEST_POSTGRES_URL")?,
                Some("SCHEMA"),
            ),
            Kind::MariaDb => (
                outbox_testing::backend_url("OUTBOX_TEST_MARIADB_URL")?,
                Some("DATABASE"),
            ),
        };
        if let Some(word) = word {
            administer(&url, &format!("CREATE {word} {name}")).await;
        }
        let mut options = ConnectOptions::new(&url);
        options
            .max_connections(if kind == Kind::Sqlite { 4 } else { 12 })
            .sqlx_logging(false);
        match kind {
            Kind::Sqlite => {}
            Kind::Postgres => {
                options.set_schema_search_path(&name);
            }
            Kind::MariaDb => {
                let name = name.clone();
                options.map_sqlx_mysql_opts(move |options| options.database(&name));
            }
        }
        configure(&mut options);
        let pool = Pool::connect(options).await.unwrap();
        if kind == Kind::Sqlite {
            pool.execute_unprepared("PRAGMA journal_mode = WAL")
                .await
                .unwrap();
        }
        crate::migrate(&pool).await.unwrap();
        let names = TableNames::new();
        let cascade = if kind == Kind::Postgres { " CASCADE" } else { "" };
        Some(Self {
            database: Database::inspect(pool.clone()).await.unwrap(),
            sql: InboxSql::new(pool.get_database_backend(), &names, Duration::from_secs(3600)),
            db: pool,
            names,
            drop: word.map(|word| (url, format!("DROP {word} {name}{cascade}"))),
            _dir: dir,
        })
    }

    pub(crate) async fn open_all() -> Vec<Self> {
        let mut all = Vec::new();
        for kind in [Kind::Sqlite, Kind::Postgres, Kind::MariaDb] {
            all.extend(Self::open(kind).await);
        }
        all
    }

    pub(crate) async fn begin(&self) -> DatabaseTransaction {
        self.database.begin().await.unwrap()
    }

    pub(crate) async fn close(self) {
        self.db.close().await.unwrap();
        if let Some((url, sql)) = self.drop {
            administer(&url, &sql).await;
        }
    }
}

pub(crate) fn message() -> Message {
    Message {
        id: MessageId::fresh(),
        event_id: MessageId::fresh().into(),
        event_type: "order.placed".to_owned(),
        event_version: 1,
        aggregate: Aggregate::new("order", "1"),
        sequence: Some(1),
        subject: None,
        content_type: String::new(),
        payload: Default::default(),
        headers: Headers::default(),
        created_at: OffsetDateTime::UNIX_EPOCH,
    }
}

pub(crate) fn incoming(stream_sequence: u64, payload: &'static [u8]) -> Incoming {
    Incoming {
        subject: "events.x".to_owned(),
        headers: Vec::new(),
        payload: payload.into(),
        delivery_count: 1,
        stream_sequence,
    }
}

async fn administer(url: &str, sql: &str) {
    let mut options = ConnectOptions::new(url);
    options.max_connections(1).sqlx_logging(false);
    let db = Pool::connect(options).await.unwrap();
    db.execute_unprepared(sql).await.unwrap();
    db.close().await.unwrap();
}

macro_rules! on_every_database {
    ($($test:ident),* $(,)?) => {
        $crate::tests::database::on_every_database!(@one sqlite, Sqlite, [$($test),*]);
        $crate::tests::database::on_every_database!(@one postgres, Postgres, [$($test),*]);
        $crate::tests::database::on_every_database!(@one mariadb, MariaDb, [$($test),*]);
    };
    (@one $module:ident, $kind:ident, [$($test:ident),*]) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                use $crate::tests::database::{Kind, TestDb};
                if let Some(db) = TestDb::open(Kind::$kind).await {
                    let limit = std::time::Duration::from_secs(60);
                    tokio::time::timeout(limit, super::$test(db)).await.expect("the test ends in time");
                }
            })*
        }
    };
}
pub(crate) use on_every_database;
