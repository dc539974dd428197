//! Migrations, and the view that shows messages to people.

use std::path::PathBuf;

use outbox_sea_orm::{TableNames, migrate, migration};
use outbox_testing::conformance::probe::Probe;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, Statement};

use crate::support::{Backend, TestDb};

const BACKENDS: [Backend; 4] = [
    Backend::Sqlite,
    Backend::SqliteMemory,
    Backend::Postgres,
    Backend::MariaDb,
];

async fn empty(backend: Backend, test: &str) -> Option<(TestDb, DatabaseConnection)> {
    let test = TestDb::empty(backend, test).await?;
    let name = format!("m{}", &uuid::Uuid::now_v7().simple().to_string()[14..]);
    let pool = match backend {
        Backend::Sqlite | Backend::SqliteMemory => test.db.clone(),
        Backend::Postgres => {
            test.execute(&format!("CREATE SCHEMA {name}")).await;
            test.connect_again(|options| {
                options.set_schema_search_path(name);
            })
            .await
        }
        Backend::MariaDb => {
            test.execute(&format!("CREATE DATABASE {name}")).await;
            test.connect_again(|options| {
                options.map_sqlx_mysql_opts(move |options| options.database(&name));
            })
            .await
        }
    };
    Some((test, pool))
}

async fn count(db: &DatabaseConnection, table: &str) -> Option<i64> {
    let sql = format!("SELECT count(*) FROM {table}");
    let row = db
        .query_one_raw(Statement::from_string(db.get_database_backend(), sql))
        .await
        .ok()??;
    row.try_get_by_index(0).ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_migrate_at_once() {
    for backend in [Backend::Sqlite, Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::empty(backend, "at_once").await else {
            continue;
        };
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let pool = test.one_connection().await;
            let names = test.names.clone();
            tasks.push(tokio::spawn(async move {
                migration::migrate_with(&pool, &names).await
            }));
        }
        for task in tasks {
            let migrated = task.await.unwrap();
            migrated.unwrap_or_else(|error| panic!("{backend:?}: {error}"));
        }
        assert_eq!(
            test.int(&format!("SELECT count(*) FROM {}", test.leases())).await,
            64
        );
        let migrations = test.names.table(test.sql_backend(), "outbox_migrations");
        let all = i64::try_from(migration::migrations(&test.names).len()).unwrap();
        assert_eq!(test.int(&format!("SELECT count(*) FROM {migrations}")).await, all);
    }
}

/// The service lacks the privilege to create tables.
#[tokio::test]
async fn migrate_changes_nothing_after_a_manual_run() {
    for backend in BACKENDS {
        let Some(test) = TestDb::empty(backend, "by_hand").await else {
            continue;
        };
        let sql = migration::sql(test.sql_backend(), &test.names).unwrap();
        test.execute(&sql).await;
        let pool = match test.sql_backend() {
            DbBackend::Postgres => {
                let role = format!("m{}", &uuid::Uuid::now_v7().simple().to_string()[14..]);
                let schema = test.names.schema().unwrap();
                let migrations = test.names.table(DbBackend::Postgres, "outbox_migrations");
                test.execute(&format!(
                    "CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {migrations} TO {role}"
                ))
                .await;
                let pool = test.one_connection().await;
                pool.execute_unprepared(&format!("SET ROLE {role}"))
                    .await
                    .unwrap();
                pool
            }
            _ => test.db.clone(),
        };
        let migrated = migration::migrate_with(&pool, &test.names).await;
        migrated.unwrap_or_else(|error| panic!("{backend:?}: {error}"));
    }
}

#[tokio::test]
async fn unregistered_tables_are_explained() {
    let Some((_test, db)) = empty(Backend::Postgres, "not_noted").await else {
        return;
    };
    migrate(&db).await.unwrap();
    db.execute_unprepared("DROP TABLE outbox_migrations")
        .await
        .unwrap();
    let error = migrate(&db).await.unwrap_err().to_string();
    assert!(error.contains("`outbox_0001_create_tables`"), "{error}");
}

/// An interrupted migration leaves a part of its tables on MySQL, which cannot roll DDL back.
#[tokio::test]
async fn an_interrupted_migration_continues() {
    for backend in [Backend::Sqlite, Backend::MariaDb] {
        let Some((_test, db)) = empty(backend, "interrupted").await else {
            continue;
        };
        migrate(&db).await.unwrap();
        for sql in [
            "DELETE FROM outbox_migrations",
            "DROP VIEW outbox_messages_readable",
            "DROP TABLE outbox_aggregates",
        ] {
            db.execute_unprepared(sql).await.unwrap();
        }
        db.execute_unprepared("DELETE FROM outbox_leases WHERE partition_no > 30")
            .await
            .unwrap();
        db.execute_unprepared("UPDATE outbox_leases SET epoch = 5")
            .await
            .unwrap();
        migrate(&db).await.unwrap();
        assert_eq!(count(&db, "outbox_leases").await, Some(64), "{backend:?}");
        assert_eq!(
            count(&db, "outbox_leases WHERE epoch = 5").await,
            Some(31),
            "{backend:?}"
        );
        assert_eq!(count(&db, "outbox_aggregates").await, Some(0), "{backend:?}");
    }
}

#[tokio::test]
async fn the_view_shows_any_payload() {
    for backend in BACKENDS {
        let Some((_test, db)) = empty(backend, "view").await else {
            continue;
        };
        migrate(&db).await.unwrap();
        let tx = sea_orm::TransactionTrait::begin(&db).await.unwrap();
        let ids = outbox_sea_orm::record(&tx, (0..4).map(|n| Probe::noted("ü", n)).collect::<Vec<_>>())
            .await
            .unwrap();
        tx.commit().await.unwrap();
        let bytes = |hex: &str| match db.get_database_backend() {
            DbBackend::Postgres => format!("'\\x{hex}'"),
            _ => format!("x'{hex}'"),
        };
        for (n, payload) in [("2", "00ff007b"), ("3", "ff5cfe")] {
            let sql = format!(
                "UPDATE outbox_messages SET payload = {}, status = {n} WHERE sequence = {n}",
                bytes(payload)
            );
            db.execute_unprepared(&sql).await.unwrap();
        }
        db.execute_unprepared("UPDATE outbox_messages SET payload = '' WHERE sequence = 4")
            .await
            .unwrap();
        let sql = match db.get_database_backend() {
            DbBackend::Postgres => {
                "SELECT id::text AS id, event_id::text AS event_id, status, aggregate_id, payload, created_at::text AS created_at FROM outbox_messages_readable ORDER BY row_id"
            }
            DbBackend::MySql => {
                "SELECT id, event_id, status, aggregate_id, payload, CAST(created_at AS CHAR) AS created_at FROM outbox_messages_readable ORDER BY row_id"
            }
            _ => {
                "SELECT id, event_id, status, aggregate_id, payload, created_at FROM outbox_messages_readable ORDER BY row_id"
            }
        };
        let rows = db
            .query_all_raw(Statement::from_string(db.get_database_backend(), sql))
            .await
            .unwrap();
        let column = |name| {
            rows.iter()
                .map(|row| row.try_get::<String>("", name).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(column("id")[0], ids[0].to_string(), "{backend:?}");
        assert_eq!(column("event_id"), column("id"), "{backend:?}");
        assert_eq!(column("aggregate_id"), ["ü"; 4]);
        assert_eq!(column("status"), ["pending", "dead", "waiting", "pending"]);
        assert!(column("created_at").iter().all(|time| time.starts_with("20")));
        let payloads = column("payload");
        assert!(payloads[0].contains("\"id\":\"ü\""), "{payloads:?}");
        let hidden: [&str; 2] = match db.get_database_backend() {
            DbBackend::Postgres => [r"\000\377\000{", r"\377\\\376"],
            _ => ["00FF007B", "FF5CFE"],
        };
        assert_eq!(payloads[1..], [hidden[0], hidden[1], ""], "{backend:?}");

        let cast = if backend == Backend::Postgres {
            "::text"
        } else {
            ""
        };
        let sql = format!("SELECT id{cast} AS id FROM outbox_dead_letters");
        let statement = Statement::from_string(db.get_database_backend(), sql);
        let dead = db.query_one_raw(statement).await.unwrap().unwrap();
        assert_eq!(
            dead.try_get::<String>("", "id").unwrap(),
            ids[1].to_string(),
            "{backend:?}"
        );
    }
}

/// With `OUTBOX_BLESS=1`, the test rewrites the files in `docs/sql`.
#[test]
fn sql_files_are_current() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/sql");
    let names = TableNames::new();
    let sql = |backend| migration::sql(backend, &names).unwrap();
    let writers = |backend| migration::writers::sql(backend, &names).unwrap();
    for (name, sql) in [
        ("postgres", sql(DbBackend::Postgres)),
        ("mysql", sql(DbBackend::MySql)),
        ("sqlite", sql(DbBackend::Sqlite)),
        ("writers.postgres", writers(DbBackend::Postgres)),
        ("writers.mysql", writers(DbBackend::MySql)),
        ("writers.sqlite", writers(DbBackend::Sqlite)),
    ] {
        let path = folder.join(format!("outbox.{name}.sql"));
        if std::env::var_os("OUTBOX_BLESS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &sql).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            checked_in == sql,
            "docs/sql/outbox.{name}.sql is out of date; run this test with OUTBOX_BLESS=1"
        );
    }
}
