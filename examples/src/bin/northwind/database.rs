//! The databases of a run: one per part, created for the run and dropped after it.
//!
//! Invariant: a run drops only databases that it created. Not here: tables, see [`crate::tables`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, QueryResult, Statement, Value,
};

use crate::failure::{Doing, Failure};
use crate::setup::{DatabaseKind, Part};

/// Connections of a program: one per concurrent handler of an inbox, and some for its other work.
pub(crate) const CONNECTIONS: u32 = 12;

/// How long a program waits for a restarting database.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the start of a run waits for a server; its address may be wrong.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The databases of one run.
#[derive(Debug)]
pub(crate) struct Databases {
    kind: DatabaseKind,
    /// The server on which databases are created; for SQLite the folder.
    admin_url: String,
    names: BTreeMap<Part, String>,
}

impl Databases {
    /// Creates an empty database for each part.
    pub(crate) async fn create(kind: DatabaseKind, admin_url: &str, run: &str) -> Result<Self, Failure> {
        check_url(kind, admin_url)?;
        let admin_url = match kind {
            // The drivers know MariaDB only by the scheme of MySQL.
            DatabaseKind::Mariadb => admin_url.replacen("mariadb://", "mysql://", 1),
            _ => admin_url.to_owned(),
        };
        let name = |part: Part| match kind {
            DatabaseKind::Sqlite => format!("{}.db", part.name()),
            _ => format!("northwind_{run}_{}", part.name()),
        };
        let databases = Self {
            kind,
            admin_url,
            names: Part::ALL.map(|part| (part, name(part))).into(),
        };
        match kind {
            DatabaseKind::Sqlite => databases.create_folder()?,
            _ => databases.on_server(create_statement(kind)).await?,
        }
        Ok(databases)
    }

    /// Address of each part's database.
    pub(crate) fn urls(&self) -> BTreeMap<Part, String> {
        let url = |name: &String| match self.kind {
            DatabaseKind::Sqlite => format!("sqlite://{}", sqlite_path(&self.admin_url).join(name).display()),
            _ => with_database(&self.admin_url, name),
        };
        self.names.iter().map(|(part, name)| (*part, url(name))).collect()
    }

    /// Drops the databases. SQLite's files stay, because the folder belongs to the caller.
    pub(crate) async fn drop(self) -> Result<(), Failure> {
        match self.kind {
            DatabaseKind::Sqlite => Ok(()),
            kind => self.on_server(drop_statement(kind)).await,
        }
    }

    fn create_folder(&self) -> Result<(), Failure> {
        let folder = sqlite_path(&self.admin_url);
        fs::create_dir_all(&folder).or_cannot(format_args!("make the folder {}", folder.display()))?;
        for file in self.names.values().map(|name| folder.join(name)) {
            if file.exists() {
                let file = file.display();
                return Err(Failure::Wrong(format!(
                    "{file} is there already; pass an empty folder as --database-url"
                )));
            }
        }
        Ok(())
    }

    async fn on_server(&self, statement: impl Fn(&str) -> String) -> Result<(), Failure> {
        let db = connect_within(CONNECT_TIMEOUT, self.kind, &self.admin_url, 1).await?;
        for name in self.names.values() {
            let statement = statement(name);
            db.execute_unprepared(&statement)
                .await
                .or_cannot(format_args!("run `{statement}`"))?;
        }
        db.close().await.or_cannot("close the connection")
    }
}

// The names consist of letters, digits and underscores. The character sets are explicit, because a server's defaults vary.
fn create_statement(kind: DatabaseKind) -> impl Fn(&str) -> String {
    move |name| match kind {
        DatabaseKind::Mariadb => format!("CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
        _ => format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"),
    }
}

fn drop_statement(kind: DatabaseKind) -> impl Fn(&str) -> String {
    move |name| match kind {
        DatabaseKind::Mariadb => format!("DROP DATABASE {name}"),
        _ => format!("DROP DATABASE {name} WITH (FORCE)"),
    }
}

fn check_url(kind: DatabaseKind, url: &str) -> Result<(), Failure> {
    let schemes: &[_] = match kind {
        DatabaseKind::Sqlite => &["sqlite:"],
        DatabaseKind::Postgres => &["postgres://", "postgresql://"],
        DatabaseKind::Mariadb => &["mariadb://", "mysql://"],
    };
    if schemes.iter().any(|scheme| url.starts_with(scheme)) {
        return Ok(());
    }
    let schemes = schemes.join("` or `");
    Err(Failure::Wrong(format!(
        "--database-url does not fit --database {}: it must start with `{schemes}`",
        kind.name()
    )))
}

/// Connects to a database. For SQLite, creates a missing file.
pub(crate) async fn connect(
    kind: DatabaseKind,
    url: &str,
    connections: u32,
) -> Result<DatabaseConnection, Failure> {
    connect_within(ACQUIRE_TIMEOUT, kind, url, connections).await
}

async fn connect_within(
    timeout: Duration,
    kind: DatabaseKind,
    url: &str,
    connections: u32,
) -> Result<DatabaseConnection, Failure> {
    let mut options = ConnectOptions::new(if kind == DatabaseKind::Sqlite {
        "sqlite:"
    } else {
        url
    });
    options
        .max_connections(connections)
        .acquire_timeout(timeout)
        .sqlx_logging(false);
    if kind == DatabaseKind::Sqlite {
        let path = sqlite_path(url);
        // Readers and the one writer do not block each other, and writers wait for each other instead of failing.
        options.map_sqlx_sqlite_opts(move |options| {
            options
                .filename(&path)
                .create_if_missing(true)
                .pragma("journal_mode", "WAL")
                .busy_timeout(Duration::from_secs(20))
        });
    }
    let what = match kind {
        DatabaseKind::Sqlite => sqlite_path(url).display().to_string(),
        // The error does not quote the address, which may contain a password.
        _ => format!("the {} server", kind.name()),
    };
    let connected = Database::connect(options).await;
    connected.or_cannot(format_args!(
        "connect to {what}; check that it runs and that the address is right"
    ))
}

impl DatabaseKind {
    fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
        }
    }
}

fn sqlite_path(url: &str) -> PathBuf {
    let path = url
        .strip_prefix("sqlite://")
        .or_else(|| url.strip_prefix("sqlite:"))
        .unwrap_or(url);
    Path::new(path).to_owned()
}

/// The same address with another database.
fn with_database(url: &str, name: &str) -> String {
    let (address, query) = match url.split_once('?') {
        Some((address, query)) => (address, format!("?{query}")),
        None => (url, String::new()),
    };
    let host = address.find("://").map_or(0, |scheme| scheme + 3);
    let end = address[host..]
        .find('/')
        .map_or(address.len(), |path| host + path);
    format!("{}/{name}{query}", &address[..end])
}

/// A statement from SQL with `?` for its values, numbered for PostgreSQL. The SQL contains no other question mark.
pub(crate) fn statement(backend: DbBackend, sql: &str, values: impl IntoIterator<Item = Value>) -> Statement {
    let sql = match backend {
        DbBackend::Postgres => {
            let mut parts = sql.split('?');
            let first = parts.next().unwrap_or_default().to_owned();
            parts
                .enumerate()
                .fold(first, |sql, (index, part)| format!("{sql}${}{part}", index + 1))
        }
        _ => sql.to_owned(),
    };
    Statement::from_sql_and_values(backend, sql, values)
}

/// Reads all rows of a query without values.
pub(crate) async fn rows(db: &impl ConnectionTrait, sql: &str) -> Result<Vec<QueryResult>, Failure> {
    let query = Statement::from_string(db.get_database_backend(), sql);
    db.query_all_raw(query)
        .await
        .or_cannot(format_args!("run `{sql}`"))
}

/// Runs a query for one number.
pub(crate) async fn count(db: &impl ConnectionTrait, sql: &str) -> Result<u64, Failure> {
    let row = rows(db, sql)
        .await?
        .pop()
        .ok_or_else(|| Failure::Wrong(format!("`{sql}` has no result")))?;
    let number: i64 = row
        .try_get_by_index(0)
        .or_cannot(format_args!("read the result of `{sql}`"))?;
    Ok(u64::try_from(number).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_exchanged_in_addresses() {
        for (url, expected) in [
            ("postgres://u:p@h:5432/postgres", "postgres://u:p@h:5432/x"),
            ("postgres://u@h", "postgres://u@h/x"),
            ("mysql://root@127.0.0.1:3307/", "mysql://root@127.0.0.1:3307/x"),
            (
                "postgres:///postgres?host=/run/pg&user=a",
                "postgres:///x?host=/run/pg&user=a",
            ),
        ] {
            assert_eq!(with_database(url, "x"), expected);
        }
    }

    #[test]
    fn placeholders_are_numbered_for_postgres() {
        let sql = "INSERT INTO t VALUES (?, ?)";
        let of = |backend| statement(backend, sql, [1.into(), 2.into()]).sql;
        assert_eq!(of(DbBackend::Postgres), "INSERT INTO t VALUES ($1, $2)");
        assert_eq!(of(DbBackend::MySql), sql);
    }
}
