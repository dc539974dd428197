//! Settings that can lose commits or change statements.

use outbox_core::{SetupKind, SetupProblem, StoreError};
use sea_orm::{DbBackend, DbErr, Statement};

use super::tables::{CONTEXT, text};
use crate::server::{self, question};
use crate::store::failed;
use crate::store::session::Session;

pub(super) async fn unfit(db: &Session) -> Result<Vec<String>, DbErr> {
    let backend = db.dialect.backend;
    let Some(question) = question(backend) else {
        return Ok(Vec::new());
    };
    let row = db.first_row(Statement::from_string(backend, question)).await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound("the settings of the session".to_owned()))?;
    server::unfit(backend, &row)
}

#[derive(Debug)]
struct Setting {
    name: &'static str,
    sql: &'static str,
    durable: &'static [&'static str],
    repair: &'static str,
}

fn settings(backend: DbBackend) -> &'static [Setting] {
    match backend {
        DbBackend::MySql => &[
            Setting {
                name: "innodb_flush_log_at_trx_commit",
                sql: "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)",
                durable: &["1", "3"],
                repair: "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            },
            Setting {
                name: "sync_binlog",
                sql: "SELECT CAST(IF(@@log_bin, @@sync_binlog, 1) AS CHAR)",
                durable: &["1"],
                repair: "SET GLOBAL sync_binlog = 1",
            },
        ],
        DbBackend::Sqlite => &[Setting {
            name: "PRAGMA synchronous",
            sql: "SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous",
            durable: &["2", "3"],
            repair: "PRAGMA synchronous = FULL",
        }],
        _ => &[],
    }
}

fn loses_commits(name: &str, value: &str, repair: &str) -> SetupProblem {
    let seen = format!("{name} is {value}, so a crash loses commits that the database has confirmed");
    SetupProblem::new(SetupKind::Setting, seen, repair)
}

pub(super) async fn durability(db: &Session) -> Result<Vec<SetupProblem>, StoreError> {
    let mut warnings = Vec::new();
    if db.dialect.backend == DbBackend::Postgres && db.shows_commits_early().await.map_err(failed(CONTEXT))? {
        let repair = "ALTER SYSTEM SET synchronous_commit = on";
        warnings.push(loses_commits("synchronous_commit", "off", repair));
    }
    for setting in settings(db.dialect.backend) {
        let value = text(db, setting.sql).await.map_err(failed(CONTEXT))?;
        if !setting.durable.contains(&value.as_str()) {
            warnings.push(loses_commits(setting.name, &value, setting.repair));
        }
    }
    Ok(warnings)
}
