//! How the sessions of a test are opened.

use std::time::Duration;

use sea_orm::sqlx::sqlite::SqliteSynchronous;
use sea_orm::{ConnectOptions, Database, DatabaseConnection};

use crate::rights::{Login, log_in};
use crate::support::Backend;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Session {
    pub(crate) isolation: Option<&'static str>,
    pub(crate) statements: &'static [&'static str],
    pub(crate) login: Option<&'static Login>,
}

pub(crate) async fn connect(
    url: &str,
    name: &str,
    backend: Backend,
    session: Session,
    change: impl FnOnce(&mut ConnectOptions),
) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    let connections = match backend {
        Backend::SqliteMemory => 1,
        Backend::Sqlite => 4,
        Backend::Postgres | Backend::MariaDb => 10,
    };
    options
        .max_connections(connections)
        .sqlx_logging(false)
        .acquire_timeout(Duration::from_secs(60));
    match backend {
        Backend::Postgres => {
            let more = std::env::var("OUTBOX_TEST_SEARCH_PATH").unwrap_or_default();
            options.set_schema_search_path(format!("{name}{more}"));
        }
        Backend::MariaDb => {
            let name = name.to_owned();
            options.map_sqlx_mysql_opts(move |options| options.database(&name));
        }
        Backend::Sqlite => {
            options.map_sqlx_sqlite_opts(|options| options.synchronous(SqliteSynchronous::Off));
        }
        Backend::SqliteMemory => {}
    }
    match (backend, session.isolation) {
        (Backend::Postgres, Some(level)) => {
            let level = level.to_lowercase();
            options.map_sqlx_postgres_opts(move |options| {
                options.options([("default_transaction_isolation", &level)])
            });
        }
        (Backend::MariaDb, Some(level)) => at_isolation_of_mariadb(&mut options, level),
        _ => {}
    }
    if !session.statements.is_empty() {
        begin_with(&mut options, session.statements, name);
    }
    if let Some(login) = session.login {
        log_in(&mut options, backend, login.name, name);
    }
    change(&mut options);
    Database::connect(options)
        .await
        .expect("the database can be reached")
}

fn begin_with(options: &mut ConnectOptions, statements: &'static [&'static str], schema: &str) {
    use sea_orm::sqlx::{AssertSqlSafe, Executor as _};

    options.map_sqlx_mysql_pool_opts(move |pool| {
        pool.after_connect(move |session, _| {
            Box::pin(async move {
                for statement in statements {
                    (&mut *session).execute(AssertSqlSafe(*statement)).await?;
                }
                Ok(())
            })
        })
    });
    let search_path = format!("SET search_path = {schema}");
    options.map_sqlx_postgres_pool_opts(move |pool| {
        let search_path = search_path.clone();
        pool.after_connect(move |session, _| {
            let search_path = search_path.clone();
            Box::pin(async move {
                (&mut *session).execute(AssertSqlSafe(search_path)).await?;
                for statement in statements {
                    (&mut *session).execute(AssertSqlSafe(*statement)).await?;
                }
                Ok(())
            })
        })
    });
}

fn at_isolation_of_mariadb(options: &mut ConnectOptions, level: &'static str) {
    use sea_orm::sqlx::{AssertSqlSafe, Executor as _};

    options.map_sqlx_mysql_pool_opts(move |pool| {
        pool.after_connect(move |connection, _| {
            let of_session = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
            Box::pin(async move { connection.execute(AssertSqlSafe(of_session)).await.map(drop) })
        })
    });
}
