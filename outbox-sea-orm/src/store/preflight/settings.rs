//! Settings of the server that break a promise, for the preflight of relays and for `outbox
//! doctor`.
//!
//! Nothing is changed here.

use outbox_core::{SetupKind, SetupProblem, StoreError};
use sea_orm::{DbBackend, DbErr, Statement};

use super::tables::{CONTEXT, text};
use crate::server::{self, UnfitSetting, question};
use crate::store::failed;
use crate::store::session::Session;

/// The settings of this session that make statements mean something else.
pub(super) async fn unfit(db: &Session) -> Result<Vec<UnfitSetting>, DbErr> {
    let backend = db.dialect.backend;
    let Some(question) = question(backend) else {
        return Ok(Vec::new());
    };
    let row = db.first_row(Statement::from_string(backend, question)).await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound("the settings of the session".to_owned()))?;
    server::unfit(backend, &row)
}

/// A setting with one value with which a confirmed commit survives a crash of the server or of its
/// machine.
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
            // The transactions of a session set it themselves.
            Self::SynchronousCommit => {
                let is_off = db.shows_commits_early().await?;
                return Ok(if is_off { "off" } else { "on" }.to_owned());
            }
            Self::FlushLogAtTrxCommit => "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)",
            // It has no effect without the binary log.
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

    /// The statement that sets it.
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

/// Warns of settings with which the server loses commits that it has confirmed.
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

/// The counter of row ids on PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RowIdCounter {
    name: String,
    cache: i64,
    /// The last value; `None` if this user may not read it.
    last: Option<i64>,
    /// The highest row id of the rows that are not published.
    highest: i64,
}

impl RowIdCounter {
    /// A relay copes, because it orders by `sequence`. But its fetches take longer, and the rows of
    /// different messages are hard to tell apart.
    fn warnings(&self) -> Vec<SetupProblem> {
        let Self {
            name,
            cache,
            last,
            highest,
        } = self;
        let mut warnings = Vec::new();
        if last.is_some_and(|last| last < *highest) {
            let last = last.unwrap_or_default();
            let seen = format!(
                "the counter {name} of row ids is at {last}, below the row id {highest} of a message that is not published, so row ids are assigned twice"
            );
            let repair = format!("SELECT pg_catalog.setval('{name}', {highest})");
            warnings.push(SetupProblem::new(SetupKind::Setting, seen, repair));
        }
        if *cache > 1 {
            let seen = format!(
                "the counter {name} of row ids has CACHE {cache}, so row ids are not in the order of commits and fetches are slower"
            );
            let repair = format!("ALTER SEQUENCE {name} CACHE 1");
            warnings.push(SetupProblem::new(SetupKind::Setting, seen, repair));
        }
        warnings
    }
}

/// Warns of a counter of row ids that is behind the rows, or cached by sessions. MySQL and SQLite
/// assign a row id above those in the table.
pub(super) async fn row_ids(db: &Session) -> Result<Vec<SetupProblem>, StoreError> {
    let messages = &db.dialect.messages;
    let highest = |status: &str| {
        format!("COALESCE((SELECT row_id FROM {messages} WHERE {status} ORDER BY row_id DESC LIMIT 1), 0)")
    };
    let sql = format!(
        "SELECT s.seqrelid::regclass::text AS name, s.seqcache AS cache, CASE WHEN has_sequence_privilege(s.seqrelid, 'SELECT, USAGE') \
         THEN COALESCE(pg_catalog.pg_sequence_last_value(s.seqrelid), 0) END AS last, GREATEST({}, {}, {}) AS highest \
         FROM pg_sequence s WHERE s.seqrelid = pg_get_serial_sequence('{}', 'row_id')::regclass::oid",
        highest("status = 0"),
        highest("status = 2"),
        highest("status = 3"),
        messages.replace('\'', "''"),
    );
    let row = db
        .one(Statement::from_string(db.dialect.backend, sql))
        .await
        .map_err(failed(CONTEXT))?;
    let read = |row: sea_orm::QueryResult| {
        Ok::<_, DbErr>(RowIdCounter {
            name: row.try_get("", "name")?,
            cache: row.try_get("", "cache")?,
            last: row.try_get("", "last")?,
            highest: row.try_get("", "highest")?,
        })
    };
    let counter = row.map(read).transpose().map_err(failed(CONTEXT))?;
    Ok(counter.map(|counter| counter.warnings()).unwrap_or_default())
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

    #[test]
    fn a_counter_behind_the_rows_is_named() {
        let counter = |cache, last, highest| RowIdCounter {
            name: "ids".to_owned(),
            cache,
            last,
            highest,
        };
        assert_eq!(counter(1, Some(7), 7).warnings().len(), 0);
        assert_eq!(counter(1, None, 7).warnings().len(), 0, "the value is not known");
        assert_eq!(
            counter(1, Some(6), 7).warnings()[0].repair,
            "SELECT pg_catalog.setval('ids', 7)"
        );
        assert_eq!(
            counter(50, Some(7), 7).warnings()[0].repair,
            "ALTER SEQUENCE ids CACHE 1"
        );
    }
}
