//! The guarantees of `SqlStore` with only the privileges of `docs/reference/rights.md`, which
//! `outbox print grants` prints.

use outbox_sea_orm::{OutboxConnection, SqlStore};
use sea_orm::sqlx::{self, Executor};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend};

use crate::store::Fixture;
use crate::support::{Backend, TestDb};

const PAGE: &str = include_str!("../../../docs/reference/rights.md");

const CONNECTIONS: u32 = 8;

mod postgres {
    use super::*;
    outbox_testing::store_conformance!(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        fixture(Backend::Postgres).await
    );
}

mod mariadb {
    use super::*;
    outbox_testing::store_conformance!(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        fixture(Backend::MariaDb).await
    );
}

async fn fixture(backend: Backend) -> Option<Fixture> {
    let db = TestDb::open(backend, "printed_rights").await?;
    let writer = user(&db, "outbox_test_writer", &["writer"]).await;
    let staff = user(&db, "outbox_test_staff", &["relay", "viewer", "operator"]).await;
    Some(Fixture {
        store: SqlStore::new(staff).with_names(&db.names).unwrap(),
        outbox: OutboxConnection::new(writer, db.config()),
        db,
    })
}

fn rights(backend: DbBackend, roles: &[&str]) -> Vec<(&'static str, &'static str)> {
    let (_, table) = PAGE.split_once("| role | on | rights | for |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let found: Vec<_> = rows
        .map(|row| Vec::from_iter(row.split('|').map(|cell| cell.trim().trim_matches('`'))))
        .filter(|cells| roles.contains(&cells[1]))
        .filter(|cells| !cells[4].ends_with("with a log"))
        .filter(|cells| backend == DbBackend::Postgres || !cells[4].ends_with("on PostgreSQL"))
        .map(|cells| (cells[3], cells[2]))
        .filter(|(_, name)| name.starts_with("outbox_"))
        .collect();
    assert!(!found.is_empty(), "{roles:?}");
    found
}

async fn user(db: &TestDb, name: &'static str, roles: &[&str]) -> DatabaseConnection {
    let whom = match db.sql_backend() {
        DbBackend::Postgres => {
            // Two tests may create the user at once.
            db.execute(&format!(
                "DO $$ BEGIN CREATE ROLE {name}; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            ))
            .await;
            let schema = db.names.schema().unwrap();
            db.execute(&format!("GRANT USAGE ON SCHEMA {schema} TO {name}"))
                .await;
            name.to_owned()
        }
        _ => {
            let whom = format!("{name}@'%'");
            db.execute(&format!(
                "CREATE USER IF NOT EXISTS {whom} IDENTIFIED BY '{name}'"
            ))
            .await;
            whom
        }
    };
    for (rights, object) in rights(db.sql_backend(), roles) {
        let object = db.names.table(db.sql_backend(), object);
        db.execute(&format!("GRANT {rights} ON {object} TO {whom}")).await;
    }
    let pool = connect(db, name).await;
    let drop = format!("DROP TABLE {}", db.messages());
    let refused = pool.execute_unprepared(&drop).await.unwrap_err().to_string();
    assert!(
        ["must be owner", "command denied"]
            .iter()
            .any(|words| refused.contains(words)),
        "{refused}"
    );
    pool
}

async fn connect(db: &TestDb, name: &'static str) -> DatabaseConnection {
    db.connect_again(|options| {
        options.max_connections(CONNECTIONS);
        match db.sql_backend() {
            DbBackend::Postgres => options.map_sqlx_postgres_pool_opts(move |pool| {
                pool.after_connect(move |connection, _| {
                    let begin = sqlx::AssertSqlSafe(format!("SET ROLE {name}"));
                    Box::pin(async move { connection.execute(begin).await.map(|_| ()) })
                })
            }),
            _ => options.map_sqlx_mysql_opts(move |options| options.username(name).password(name)),
        };
    })
    .await
}
