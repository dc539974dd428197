//! Settings that can lose commits or change statements.

use outbox_core::{SetupKind, SetupProblem, StoreError};
use sea_orm::{DbBackend, DbErr, Statement};

use super::tables::{CONTEXT, text};
use crate::server::{self, UnfitSetting, question};
use crate::store::failed;
use crate::store::session::Session;

pub(super) async fn unfit(db: &Session) -> Result<Vec<UnfitSetting>, DbErr> {
    let backend = db.dialect.backend;
    let Some(question) = question(backend) else {
        return Ok(Vec::new());
    };
    let row = db.first_row(Statement::from_string(backend, question)).await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound("the settings of the session".to_owned()))?;
    server::unfit(backend, &row)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    SynchronousCommit,
    FlushLogAtTrxCommit,
    SyncBinlog,
    Synchronous,
}

impl Setting {
    fn of(backend: DbBackend) -> &'static [Self] {
        match backend {
            DbBackend::Postgres => &[Self::SynchronousCommit],
            DbBackend::MySql => &[Self::FlushLogAtTrxCommit, Self::SyncBinlog],
            _ => &[Self::Synchronous],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::SynchronousCommit => "synchronous_commit",
            Self::FlushLogAtTrxCommit => "innodb_flush_log_at_trx_commit",
            Self::SyncBinlog => "sync_binlog",
            Self::Synchronous => "PRAGMA synchronous",
        }
    }

    async fn value(self, db: &Session) -> Result<String, DbErr> {
        let sql = match self {
            Self::SynchronousCommit => {
                let is_off = db.shows_commits_early().await?;
                return Ok(if is_off { "off" } else { "on" }.to_owned());
            }
            Self::FlushLogAtTrxCommit => "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)",
            Self::SyncBinlog => "SELECT CAST(IF(@@log_bin, @@sync_binlog, 1) AS CHAR)",
            Self::Synchronous => "SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous",
        };
        text(db, sql).await
    }

    fn is_durable(self, value: &str) -> bool {
        match self {
            Self::SynchronousCommit => value != "off",
            // MariaDB: 3 syncs twice.
            Self::FlushLogAtTrxCommit => matches!(value, "1" | "3"),
            Self::SyncBinlog => value == "1",
            // FULL and EXTRA.
            Self::Synchronous => matches!(value, "2" | "3"),
        }
    }

    fn repair(self) -> &'static str {
        match self {
            Self::SynchronousCommit => "ALTER SYSTEM SET synchronous_commit = on",
            Self::FlushLogAtTrxCommit => "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            Self::SyncBinlog => "SET GLOBAL sync_binlog = 1",
            Self::Synchronous => "PRAGMA synchronous = FULL",
        }
    }

    fn warning(self, value: &str) -> SetupProblem {
        let seen = format!(
            "{} is {value}, so a crash loses commits that the database has confirmed",
            self.name()
        );
        SetupProblem::new(SetupKind::Setting, seen, self.repair())
    }
}

pub(super) async fn durability(db: &Session) -> Result<Vec<SetupProblem>, StoreError> {
    let mut warnings = Vec::new();
    for setting in Setting::of(db.dialect.backend) {
        let value = setting.value(db).await.map_err(failed(CONTEXT))?;
        if !setting.is_durable(&value) {
            warnings.push(setting.warning(&value));
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_loses_commits_is_named() {
        for (setting, lossy, durable) in [
            (Setting::SynchronousCommit, "off", ["on", "local"]),
            (Setting::FlushLogAtTrxCommit, "2", ["1", "3"]),
            (Setting::SyncBinlog, "0", ["1", "1"]),
            (Setting::Synchronous, "1", ["2", "3"]),
        ] {
            assert!(!setting.is_durable(lossy), "{setting:?}");
            assert!(
                durable.iter().all(|value| setting.is_durable(value)),
                "{setting:?}"
            );
            assert!(setting.warning(lossy).seen.contains(setting.name()));
        }
    }
}
