//! The replication slot: its state on the server, and its creation.

use outbox_core::log::Position;
use outbox_core::{SetupKind, SetupProblem};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, QueryResult};

use super::failure::{failed, setup, sqlstate};
use super::sql::{Names, statement};
use super::{LogError, table};

const WAITS: &str = "30s";

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) is_active: bool,
    pub(crate) wal_status: Option<String>,
    pub(crate) confirmed: Option<Position>,
    pub(crate) retained_bytes: Option<u64>,
    pub(crate) safe_bytes: Option<u64>,
    plugin: Option<String>,
    is_of_this_database: bool,
}

pub(crate) const NOT_FOUND_OUT: &str = "the slot could not be looked up";

impl Slot {
    pub(crate) async fn find(db: &DatabaseConnection, names: &Names) -> Result<Option<Self>, DbErr> {
        let sql = "SELECT active, wal_status, (confirmed_flush_lsn - '0/0')::bigint AS confirmed, plugin, \
                   database = current_database() AS here, \
                   pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS retained, safe_wal_size AS safe \
                   FROM pg_replication_slots WHERE slot_name = $1";
        let row = db
            .query_one_raw(statement(sql, [names.slot.clone().into()]))
            .await;
        let unsigned = |value: i64| u64::try_from(value).unwrap_or_default();
        let read = |row: QueryResult| {
            Ok(Self {
                is_active: row.try_get("", "active")?,
                wal_status: row.try_get("", "wal_status")?,
                confirmed: row
                    .try_get::<Option<i64>>("", "confirmed")?
                    .map(|position| Position(unsigned(position))),
                retained_bytes: row.try_get::<Option<i64>>("", "retained")?.map(unsigned),
                safe_bytes: row.try_get::<Option<i64>>("", "safe")?.map(unsigned),
                plugin: row.try_get("", "plugin")?,
                is_of_this_database: row.try_get::<Option<bool>>("", "here")?.unwrap_or_default(),
            })
        };
        row.and_then(|row| row.map(read).transpose())
    }

    /// Whether the slot retained too much WAL or was idle too long.
    pub(crate) fn is_lost(&self) -> bool {
        self.wal_status.as_deref() == Some("lost") || self.confirmed.is_none()
    }

    pub(crate) fn is_of_a_log(&self) -> bool {
        self.is_of_this_database && self.plugin.as_deref() == Some("pgoutput")
    }

    pub(crate) fn is_ours(&self, stored: Position) -> bool {
        !self.is_lost() && self.is_of_a_log() && self.confirmed.is_some_and(|confirmed| confirmed <= stored)
    }
}

pub(crate) fn foreign_slot(names: &Names) -> String {
    format!(
        "the replication slot {} belongs to another program or database; give this log another name (`PostgresLog::named`, or `log.name` in the file)",
        names.slot
    )
}

/// Creates the slot. Waits for the end of all open transactions.
pub(crate) async fn create_slot(db: &DatabaseConnection, names: &Names) -> Result<Position, LogError> {
    let version: u32 = setting(db, "server_version_num")
        .await?
        .parse()
        .unwrap_or_default();
    // From version 17 on, the server synchronizes the slot to a standby server.
    let failover = if version >= 170_000 {
        ", false, false, true"
    } else {
        ""
    };
    let sql = format!(
        "SELECT (lsn - '0/0')::bigint AS position FROM pg_catalog.pg_create_logical_replication_slot('{}', 'pgoutput'{failover})",
        names.slot
    );
    // The statement timeout ends with the transaction.
    let tx = table::begin(db)
        .await
        .map_err(failed("the replication slot could not be created"))?;
    let limit = format!("SET LOCAL statement_timeout = '{WAITS}'");
    tx.execute_unprepared(&limit)
        .await
        .map_err(failed("the replication slot could not be created"))?;
    match tx.query_one_raw(statement(sql, [])).await {
        Ok(row) => {
            let position = table::found(row).and_then(|row| table::position(&row, "position"));
            tx.commit()
                .await
                .map_err(failed("the replication slot could not be created"))?;
            position.map_err(failed("the position of the new slot could not be read"))
        }
        Err(error) => {
            drop(tx);
            Err(why_no_slot(db, error).await)
        }
    }
}

pub(crate) fn no_free_slot() -> LogError {
    setup("all replication slots are in use; raise max_replication_slots, or drop an unused slot")
}

async fn why_no_slot(db: &DatabaseConnection, error: DbErr) -> LogError {
    match sqlstate(&error).as_deref() {
        Some("57014") => {
            let seen =
                format!("open transactions have blocked the creation of the replication slot for {WAITS}");
            let repair = format!("end them and call again: {}", open_transactions(db).await);
            LogError::Setup(SetupProblem::new(SetupKind::OpenTransactions, seen, repair))
        }
        Some("53400") => no_free_slot(),
        _ => failed("the replication slot could not be created")(error),
    }
}

/// The transactions that block a new slot. `backend_xid` is visible without `pg_read_all_stats`;
/// `xact_start` and `backend_type` are not.
async fn open_transactions(db: &DatabaseConnection) -> String {
    let sql = "SELECT string_agg(text, ', ' ORDER BY since) AS value FROM ( \
               SELECT pg_catalog.format('pid %s of %s in database %s since %s', pid, usename, datname, xact_start) AS text, xact_start AS since \
               FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid() \
               UNION ALL SELECT pg_catalog.format('prepared transaction %L of %s in database %s since %s', gid, owner, database, prepared), prepared \
               FROM pg_catalog.pg_prepared_xacts) open";
    let open: Result<Option<String>, _> = table::value(db, statement(sql, [])).await;
    open.ok()
        .flatten()
        .unwrap_or_else(|| "none is open now".to_owned())
}

pub(crate) async fn setting(db: &DatabaseConnection, name: &str) -> Result<String, LogError> {
    let sql = "SELECT COALESCE(current_setting($1, true), '') AS value";
    let value = table::value(db, statement(sql, [name.into()])).await;
    value.map_err(failed("the server's settings could not be read"))
}
