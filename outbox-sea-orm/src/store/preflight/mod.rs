//! Checks the database before the first message. Changes nothing.

mod rows;
mod settings;
mod tables;

use outbox_core::{SetupKind, SetupProblem, StoreError, describe};
use sea_orm::{DatabaseConnection, DbBackend, DbErr, RuntimeErr};

use self::tables::{CONTEXT, text};
use super::failed;
use super::session::Session;
use crate::connect::{ConnectError, check_sessions, connect_error};
use crate::server::{untested_engine, version_query};

pub(super) async fn preflight(
    pool: &DatabaseConnection,
    db: &Session,
    deletes: bool,
    untested: bool,
) -> Result<Vec<SetupProblem>, StoreError> {
    let version = text(db, version_query(db.dialect.backend)).await;
    // This check is first: a pooler that shares sessions can make other statements fail or affect
    // other clients.
    let kept = check_sessions(pool, version.as_ref().err()).await;
    kept.map_err(|error| lasting(&error))?;
    let version = version.map_err(|error| unavailable(pool, error))?;
    check_engine(&version, untested)?;
    check_version(db.dialect.backend, &version)?;
    check_settings(db).await?;
    tables::check(db, deletes).await?;
    rows::check(db).await?;
    match db.dialect.backend {
        DbBackend::MySql => mysql(db).await,
        DbBackend::Sqlite => sqlite(db).await,
        DbBackend::Postgres => postgres(db).await,
        _ => Ok(Vec::new()),
    }
}

/// A missing driver, refused login or failed TLS lasts until an operator acts.
fn unavailable(pool: &DatabaseConnection, error: DbErr) -> StoreError {
    if let DbErr::Conn(RuntimeErr::Internal(text)) = error {
        return setting(text, "");
    }
    match connect_error(pool, error) {
        error if error.is_lasting() => lasting(&error),
        error => StoreError::Database {
            context: CONTEXT,
            source: Box::new(error),
        },
    }
}

fn lasting(error: &ConnectError) -> StoreError {
    let kind = match error {
        ConnectError::Refused { .. } => SetupKind::Login,
        ConnectError::Tls { .. } => SetupKind::Tls,
        _ => SetupKind::Setting,
    };
    StoreError::setup(kind, describe(error), "")
}

fn setting(seen: impl Into<String>, repair: &str) -> StoreError {
    StoreError::setup(SetupKind::Setting, seen, repair)
}

fn warning(seen: impl Into<String>, repair: &str) -> SetupProblem {
    SetupProblem::new(SetupKind::Setting, seen, repair)
}

async fn postgres(db: &Session) -> Result<Vec<SetupProblem>, StoreError> {
    let encoding = text(db, "SELECT current_setting('server_encoding')")
        .await
        .map_err(failed(CONTEXT))?;
    if encoding != "UTF8" {
        return Err(setting(
            format!(
                "the database has the encoding {encoding}, which cannot store all texts of messages and errors"
            ),
            "use a database with the encoding UTF8: `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`",
        ));
    }
    let mut warnings = settings::durability(db).await?;
    // `outbox_log::PostgresLog::init` changes this default.
    let default = format!(
        "SELECT COALESCE((SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d JOIN pg_attribute a \
         ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE d.adrelid = to_regclass('{}')::oid AND a.attname = 'status'), '')",
        db.dialect.messages.replace('\'', "''")
    );
    if text(db, &default).await.map_err(failed(CONTEXT))? == "4" {
        warnings.push(SetupProblem::new(
            SetupKind::LeftToLog,
            "new messages are published from the log; a polling relay publishes only messages that a log relay left in the table",
            "run a log relay (`LogRelay`, `log.read = true`), or drop the log (`outbox relay log drop`)",
        ));
    }
    Ok(warnings)
}

async fn mysql(db: &Session) -> Result<Vec<SetupProblem>, StoreError> {
    let format = text(db, "SELECT CONCAT(@@log_bin, ' ', @@session.binlog_format)").await;
    if format.is_ok_and(|format| format.eq_ignore_ascii_case("1 STATEMENT")) {
        return Err(setting(
            "binlog_format is STATEMENT, with which READ COMMITTED cannot write",
            "set it to ROW or MIXED",
        ));
    }
    let mut warnings = settings::durability(db).await?;
    let galera = text(db, "SELECT CAST(@@wsrep_on AS CHAR)").await;
    if galera.is_ok_and(|on| on == "1") {
        warnings.push(warning(
            "this is a Galera cluster: row ids of several nodes are not in commit order",
            "connect all writers and relays to one node",
        ));
    }
    Ok(warnings)
}

async fn sqlite(db: &Session) -> Result<Vec<SetupProblem>, StoreError> {
    let mode = text(db, "PRAGMA journal_mode").await.map_err(failed(CONTEXT))?;
    Ok(match mode.as_str() {
        "memory" => Vec::new(),
        "wal" => settings::durability(db).await?,
        _ => vec![warning(
            format!("journal_mode is {mode}, so readers and the writer block each other"),
            "run `PRAGMA journal_mode = WAL` once",
        )],
    })
}

fn check_engine(version: &str, is_allowed: bool) -> Result<(), StoreError> {
    match untested_engine(version) {
        Some(engine) if !is_allowed => Err(StoreError::setup(
            SetupKind::Version,
            format!(
                "the server is {engine} ({version}), an untested engine that may lack locks or isolation that the outbox needs"
            ),
            "use PostgreSQL, MySQL, MariaDB or SQLite, or allow it with `SqlStore::allow_untested_engine` (program: `allow_untested_engine = true`)",
        )),
        _ => Ok(()),
    }
}

async fn check_settings(db: &Session) -> Result<(), StoreError> {
    match settings::unfit(db).await.map_err(failed(CONTEXT))?.pop() {
        None => Ok(()),
        Some(unfit) => Err(setting(unfit, "")),
    }
}

/// A server version without a number is accepted, because a fork may number differently.
fn check_version(backend: DbBackend, text: &str) -> Result<(), StoreError> {
    let (name, oldest) = match backend {
        DbBackend::Postgres => ("PostgreSQL", [12, 0, 0]),
        DbBackend::MySql if text.to_ascii_lowercase().contains("mariadb") => ("MariaDB", [10, 6, 0]),
        DbBackend::MySql => ("MySQL", [8, 0, 1]),
        _ => ("SQLite", [3, 35, 0]),
    };
    let text = text.strip_prefix("PostgreSQL ").unwrap_or(text);
    // Some MariaDB servers prepend `5.5.5-` for old clients.
    match parse_version(text.strip_prefix("5.5.5-").unwrap_or(text)) {
        Some(version) if version < oldest => Err(StoreError::setup(
            SetupKind::Version,
            format!("the server is {name} {text}"),
            format!("use {name} {}.{}.{} or later", oldest[0], oldest[1], oldest[2]),
        )),
        _ => Ok(()),
    }
}

fn parse_version(text: &str) -> Option<[u32; 3]> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let mut numbers = text[..end].split('.').map(str::parse::<u32>);
    let first = numbers.next()?.ok()?;
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or_default();
    Some([first, next(), next()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(backend: DbBackend, text: &str) -> bool {
        matches!(check_version(backend, text), Err(StoreError::Setup(problem)) if problem.kind == SetupKind::Version)
    }

    #[test]
    fn servers_that_are_too_old_are_refused() {
        let (postgres, mysql, sqlite) = (DbBackend::Postgres, DbBackend::MySql, DbBackend::Sqlite);
        for (backend, old, new) in [
            (
                postgres,
                "PostgreSQL 11.22 (Debian 11.22-1) on x86_64-pc-linux-gnu",
                "PostgreSQL 12.0 on x86_64-pc-linux-gnu",
            ),
            (postgres, "9.6.24", "15.18 (Debian 15.18-0+deb12u1)"),
            (postgres, "11beta1", "18beta1"),
            (
                mysql,
                "8.0.0-dmr MySQL Community Server",
                "8.0.1 MySQL Community Server",
            ),
            (mysql, "5.7.44-log MySQL", "9.1.0 MySQL"),
            (mysql, "10.5.29-MariaDB", "10.6.0-MariaDB-log"),
            (mysql, "5.5.5-10.4.1-MariaDB", "5.5.5-10.11.19-MariaDB-0+deb12u1"),
            (
                mysql,
                "10.5.1 mariadb.org binary distribution",
                "11.4.2 mariadb.org binary distribution",
            ),
            (sqlite, "3.34.1", "3.35.0"),
        ] {
            assert!(is_refused(backend, old), "{old}");
            assert!(!is_refused(backend, new), "{new}");
        }
    }

    #[test]
    fn untested_engine_is_refused_unless_it_is_allowed() {
        let error = check_engine("8.0.11-TiDB-v8.5.0", false).unwrap_err().to_string();
        assert!(
            error.contains("TiDB") && error.contains("allow_untested_engine"),
            "{error}"
        );
        assert!(check_engine("8.0.11-TiDB-v8.5.0", true).is_ok());
        assert!(check_engine("10.11.19-MariaDB", false).is_ok());
    }

    #[test]
    fn a_build_without_the_driver_is_not_an_outage() {
        let error = unavailable(
            &DatabaseConnection::default(),
            crate::store::no_driver(DbBackend::Postgres),
        );
        assert!(matches!(&error, StoreError::Setup { .. }), "{error:?}");
        assert!(error.to_string().contains("enable its feature"), "{error}");
    }

    #[test]
    fn unparsable_version_is_accepted() {
        for text in ["", "devel", ".", "99999999999999999999"] {
            assert!(!is_refused(DbBackend::Postgres, text), "{text}");
        }
    }
}
