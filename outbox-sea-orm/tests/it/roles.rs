//! Roles with few privileges, and read-only servers.

use std::time::Duration;

use outbox_core::{
    NewMessage, OutboxAdmin, OutboxReader, OutboxStore, OwnerId, PurgeRequest, RelayHealth, Selection,
    SetupKind, StoreError, Verdict,
};
use outbox_sea_orm::SqlStore;
use outbox_testing::Operator as _;
use outbox_testing::conformance::probe::Probe;
use sea_orm::sqlx::{self, Executor};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, TransactionTrait};

use crate::support::{Backend, TTL, TestDb, settlements};

const SERVERS: [Backend; 2] = [Backend::Postgres, Backend::MariaDb];

pub(crate) struct Role {
    pub(crate) test: TestDb,
    pub(crate) name: String,
    pool: DatabaseConnection,
}

impl Role {
    pub(crate) async fn open(backend: Backend, test: &str) -> Option<Self> {
        let test = TestDb::open(backend, test).await?;
        let name = format!("r{}", &uuid::Uuid::now_v7().simple().to_string()[14..]);
        let pool = match test.sql_backend() {
            DbBackend::Postgres => {
                test.execute(&format!("CREATE ROLE {name}")).await;
                session_of(&test, format!("SET ROLE {name}")).await
            }
            _ => {
                test.execute(&format!("CREATE USER {name}@'%' IDENTIFIED BY '{name}'"))
                    .await;
                test.execute(&format!("GRANT CREATE ON outbox.nothing TO {name}@'%'"))
                    .await;
                let user = name.clone();
                test.connect_again(|options| {
                    options.max_connections(1);
                    options.map_sqlx_mysql_opts(move |options| options.username(&user).password(&user));
                })
                .await
            }
        };
        Some(Self { test, name, pool })
    }

    pub(crate) fn store(&self) -> SqlStore {
        SqlStore::new(self.pool.clone())
            .with_names(&self.test.names)
            .unwrap()
    }

    async fn grant(&self, what: &str) {
        let whom = match self.test.sql_backend() {
            DbBackend::Postgres => self.name.clone(),
            _ => format!("{}@'%'", self.name),
        };
        self.test.execute(&format!("GRANT {what} TO {whom}")).await;
    }

    async fn grant_on(&self, rights: &str, table: &'static str) {
        let table = self.test.names.table(self.test.sql_backend(), table);
        self.grant(&format!("{rights} ON {table}")).await;
    }

    async fn grant_usage(&self) {
        if let (DbBackend::Postgres, Some(schema)) = (self.test.sql_backend(), self.test.names.schema()) {
            self.grant(&format!("USAGE ON SCHEMA {schema}")).await;
        }
    }
}

async fn session_of(test: &TestDb, begin: String) -> DatabaseConnection {
    test.connect_again(|options| {
        options.max_connections(1);
        options.map_sqlx_postgres_pool_opts(move |pool| {
            let begin = begin.clone();
            pool.after_connect(move |connection, _| {
                let begin = begin.clone();
                Box::pin(async move { connection.execute(sqlx::AssertSqlSafe(begin)).await.map(|_| ()) })
            })
        });
    })
    .await
}

#[tokio::test]
async fn rights_named_by_the_preflight_are_sufficient() {
    relay_with_its_rights(true).await;
}

#[tokio::test]
async fn relay_that_keeps_messages_needs_no_delete_right() {
    relay_with_its_rights(false).await;
}

pub(crate) async fn grant_what_is_asked_for(role: &Role, store: &SqlStore, deletes: bool) {
    for _ in 0..5 {
        match store.preflight(deletes).await {
            Ok(mut warnings) => {
                warnings.retain(|warning| !warning.seen.contains("so a crash loses commits"));
                assert!(warnings.is_empty(), "{warnings:?}");
                return;
            }
            Err(StoreError::Setup(problem)) => {
                assert_eq!(problem.kind, SetupKind::Rights);
                let (_, grants) = problem.repair.split_once(": ").expect("statements to run");
                println!("{grants}");
                role.test.execute(grants).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("the rights are never enough");
}

async fn relay_with_its_rights(deletes: bool) {
    for backend in SERVERS {
        let Some(role) = Role::open(backend, "relay_rights").await else {
            continue;
        };
        let store = role.store();
        grant_what_is_asked_for(&role, &store, deletes).await;
        let delete = format!("DELETE FROM {} WHERE 1 = 0", role.test.messages());
        assert_eq!(role.pool.execute_unprepared(&delete).await.is_ok(), deletes);
        role.test
            .record([
                NewMessage::from_event(&Probe::noted("a", 1).with_dedup_key("k")).unwrap(),
                NewMessage::from_event(&Probe::noted("b", 1)).unwrap(),
                NewMessage::from_event(&Probe::noted("b", 2)).unwrap(),
                NewMessage::from_event(&Probe::noted("c", 1)).unwrap(),
            ])
            .await
            .unwrap();
        let owner = OwnerId::fresh();
        store
            .announce(owner, TTL, &RelayHealth::Healthy.into())
            .await
            .unwrap();
        let leases = store.acquire(owner, TTL, 64).await.unwrap();
        assert_eq!(store.renew(owner, &leases, TTL).await.unwrap().len(), 64);
        let rows = role.test.scan(&leases, 10).await.due;
        assert_eq!(rows.len(), 4);
        let delay = Duration::ZERO;
        let verdicts = [
            Verdict::Published { keep: !deletes },
            Verdict::Blocked {
                delay,
                error: Some("no".to_owned()),
                attempt: true,
            },
            Verdict::Waits,
            Verdict::Dead {
                error: "no".to_owned(),
                halt: true,
            },
        ];
        for (row, verdict) in rows.iter().zip(&verdicts) {
            let settlement = settlements(std::slice::from_ref(row), verdict);
            assert_eq!(
                store.settle(&leases, &settlement).await.unwrap(),
                1,
                "{verdict:?}"
            );
        }
        store.backlog().await.unwrap();
        let request = PurgeRequest {
            older_than: deletes.then_some(Duration::ZERO),
            keys_older_than: Duration::from_secs(3600),
            after: None,
            limit: 10.try_into().unwrap(),
        };
        store.purge(request).await.unwrap();
        store.leave(owner).await.unwrap();
    }
}

async fn read_only(test: &TestDb) -> DatabaseConnection {
    match test.sql_backend() {
        DbBackend::Postgres => session_of(test, "SET default_transaction_read_only = on".to_owned()).await,
        DbBackend::MySql => {
            let pool = test.one_connection().await;
            pool.execute_unprepared("SET SESSION TRANSACTION READ ONLY")
                .await
                .unwrap();
            pool
        }
        _ => {
            let url = test.url().replace("mode=rwc", "mode=ro");
            test.connect_through(&url, |_| {}).await
        }
    }
}

#[tokio::test]
async fn read_only_database_is_named_at_start() {
    for backend in [Backend::Sqlite, Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::open(backend, "read_only").await else {
            continue;
        };
        let pool = read_only(&test).await;
        let store = SqlStore::new(pool).with_names(&test.names).unwrap();
        match store.preflight(true).await {
            Err(StoreError::Setup(problem)) if backend == Backend::Sqlite => {
                assert!(problem.repair.contains("for writing"), "{problem}");
            }
            Err(StoreError::Database { context, .. }) if backend != Backend::Sqlite => {
                assert!(context.contains("primary"), "{context}");
            }
            other => panic!("{backend:?}: {other:?}"),
        }
    }
}

/// Connections to a former primary answer pings, so the pool would keep them for half an hour.
#[tokio::test]
async fn a_connection_to_a_former_primary_is_replaced() {
    for backend in [Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::open(backend, "former_primary").await else {
            continue;
        };
        let pool = test.one_connection().await;
        let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
        store.backlog().await.unwrap();
        let demote = match backend {
            Backend::Postgres => "SET default_transaction_read_only = on",
            _ => "SET SESSION TRANSACTION READ ONLY",
        };
        pool.execute_unprepared(demote).await.unwrap();
        store
            .acquire(OwnerId::fresh(), TTL, 64)
            .await
            .expect_err("a server that only reads");
        let leases = store.acquire(OwnerId::fresh(), TTL, 64).await;
        assert_eq!(leases.unwrap().len(), 64, "{backend:?}");
    }
}

#[tokio::test]
async fn sql_writer_needs_only_the_execute_right() {
    for backend in SERVERS {
        let Some(role) = Role::open(backend, "a_writer_in_sql").await else {
            continue;
        };
        let (names, sql_backend) = (&role.test.names, role.test.sql_backend());
        outbox_sea_orm::migration::writers::migrate_with(&role.test.db, names)
            .await
            .unwrap();
        role.grant_usage().await;
        let name = names.table(sql_backend, "outbox_record");
        let call = match sql_backend {
            DbBackend::Postgres => format!("SELECT {name}('probe', '1', 'noted', '{{}}')"),
            _ => format!(
                "CALL {name}('probe', '1', 'noted', '{{}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
            ),
        };
        let record = async || {
            let tx = role.pool.begin().await.unwrap();
            // A temporary table must not hide a table of the outbox.
            if sql_backend == DbBackend::Postgres {
                let own = "CREATE TEMPORARY TABLE outbox_messages () ON COMMIT DROP";
                tx.execute_unprepared(own).await.unwrap();
            }
            let recorded = tx.execute_unprepared(&call).await.map(|_| ());
            tx.commit().await.unwrap();
            recorded
        };
        record().await.unwrap_err();
        role.grant(&match sql_backend {
            DbBackend::Postgres => format!("EXECUTE ON FUNCTION {name}"),
            _ => format!("EXECUTE ON PROCEDURE outbox.{name}"),
        })
        .await;
        record().await.unwrap();
        let delete = format!("DELETE FROM {}", role.test.messages());
        role.pool.execute_unprepared(&delete).await.unwrap_err();
        assert_eq!(role.test.fetch_all().await.len(), 1, "{backend:?}");
    }
}

#[tokio::test]
async fn documented_reader_rights_are_sufficient() {
    for backend in SERVERS {
        let Some(reader) = Role::open(backend, "reader_rights").await else {
            continue;
        };
        reader.grant_usage().await;
        for table in [
            "outbox_messages",
            "outbox_aggregates",
            "outbox_blocks",
            "outbox_leases",
            "outbox_relays",
            "outbox_pauses",
        ] {
            reader.grant_on("SELECT", table).await;
        }
        let (test, store) = (&reader.test, reader.store());
        test.record([Probe::noted("a", 1)]).await.unwrap();
        let listed = store
            .list(&Selection::all(), 10.try_into().unwrap())
            .await
            .unwrap();
        let message = &listed[0];
        assert!(store.find(message.id).await.unwrap().is_some(), "{backend:?}");
        assert!(store.head(&message.aggregate).await.unwrap().is_some());
        assert_eq!(store.block(&message.aggregate).await.unwrap(), None);
        assert_eq!(store.relays().await.unwrap(), []);
        assert_eq!(store.pauses().await.unwrap(), []);
        assert_eq!(store.partitions().await.unwrap().len(), 64);
        assert_eq!(store.backlog().await.unwrap().pending, 1);
        store.blocked(10.try_into().unwrap()).await.unwrap();
        store.resume(&message.aggregate).await.unwrap_err();
    }
}
