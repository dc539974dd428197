//! The databases of a run: one per part, created for the run and dropped after it.
//!
//! Invariant: a run drops only databases that it created.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use sea_orm::{ConnectOptions, ConnectionTrait, DatabaseConnection, QueryResult, Statement};
use tokio::time::timeout;
use url::Url;

use crate::setup::Part;

/// Connections of a pool: one per concurrent handler of an inbox, plus some for other work.
pub(crate) const CONNECTIONS: u32 = 12;

const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Databases {
    server: Option<Url>,
    names: [String; 5],
    pub(crate) urls: BTreeMap<Part, String>,
}

impl Databases {
    pub(crate) async fn create(server: Option<Url>, folder: &Path, run: &str) -> Result<Self> {
        let names = Part::ALL.map(|part| format!("northwind_{run}_{}", part.name()));
        let url = |name: &String| match server.clone() {
            Some(mut url) => {
                url.set_path(name);
                url.to_string()
            }
            None => format!("sqlite://{}/{name}.db?mode=rwc", folder.display()),
        };
        let databases = Self {
            urls: Part::ALL.into_iter().zip(names.iter().map(url)).collect(),
            server,
            names,
        };
        // The character sets are explicit, because server defaults vary.
        databases
            .on_server(|name, is_postgres| match is_postgres {
                true => format!(
                    "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
                ),
                false => format!("CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
            })
            .await?;
        Ok(databases)
    }

    /// Drops the databases. SQLite files stay, because the folder belongs to the caller.
    pub(crate) async fn drop(self) -> Result<()> {
        self.on_server(|name, is_postgres| match is_postgres {
            true => format!("DROP DATABASE {name} WITH (FORCE)"),
            false => format!("DROP DATABASE {name}"),
        })
        .await
    }

    async fn on_server(&self, statement: impl Fn(&str, bool) -> String) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        let db = timeout(CONNECT_TIMEOUT, connect(server.as_str(), 1))
            .await
            .context(
                "cannot connect to the database server; check that it runs and that the address is right",
            )??;
        for name in &self.names {
            let statement = statement(name, is_postgres(server));
            db.execute_unprepared(&statement)
                .await
                .with_context(|| format!("cannot run `{statement}`"))?;
        }
        Ok(db.close().await?)
    }
}

pub(crate) fn is_postgres(server: &Url) -> bool {
    server.scheme().starts_with("postgres")
}

pub(crate) async fn connect(url: &str, connections: u32) -> Result<DatabaseConnection> {
    let mut options = ConnectOptions::new(url);
    options
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .sqlx_logging(false)
        // On SQLite with WAL, readers and the single writer do not block each other, and a second
        // writer waits.
        .map_sqlx_sqlite_opts(|options| {
            options
                .pragma("journal_mode", "WAL")
                .busy_timeout(Duration::from_secs(20))
        });
    Ok(outbox_sea_orm::connect(options).await?)
}

pub(crate) async fn rows(db: &DatabaseConnection, sql: &str) -> Result<Vec<QueryResult>> {
    let query = Statement::from_string(db.get_database_backend(), sql);
    db.query_all_raw(query)
        .await
        .with_context(|| format!("cannot run `{sql}`"))
}

pub(crate) async fn count(db: &DatabaseConnection, table_and_filter: &str) -> Result<u64> {
    let sql = format!("SELECT COUNT(*) FROM {table_and_filter}");
    let row = rows(db, &sql).await?.pop();
    let row = row.ok_or_else(|| anyhow!("`{sql}` has no result"))?;
    Ok(u64::try_from(row.try_get_by_index::<i64>(0)?)?)
}
