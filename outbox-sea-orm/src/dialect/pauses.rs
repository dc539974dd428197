//! SQL of pauses. The table has a few rows. A pause of all messages has the empty aggregate type.

use outbox_core::PauseRequest;
use outbox_core::store::storable_error;
use sea_orm::{DbBackend, Statement, Value};

use super::key::Key;
use super::{Dialect, micros};

/// The end of a block, or the time of an unsequenced message, that lasts until a pause is finished: 9000-01-01 00:00:00 UTC in microseconds since 1970. It
/// tells them from other blocks and times.
pub(crate) const HELD_UNTIL: i64 = 221_845_392_000_000_000;

impl Dialect {
    /// All pauses, that of all messages first (primary key). Locks nothing.
    pub(crate) fn pauses(&self) -> Statement {
        let now = self.statement_now();
        self.sql(format!(
            "SELECT {} AS aggregate_type, reason, paused_by, {} AS since_micros, {} AS ends_micros, {} AS now_micros FROM {} p \
             ORDER BY p.aggregate_type",
            self.bytes("aggregate_type"),
            self.micros_of_any("paused_at"),
            self.micros_of_any("ends_at"),
            self.micros(now),
            self.pauses,
        ))
        .statement()
    }

    /// Begins a pause, or replaces the one of the same type (primary key).
    pub(crate) fn pause(&self, request: &PauseRequest) -> Statement {
        let mut sql = self.sql(format!(
            "INSERT INTO {} (aggregate_type, reason, paused_by, paused_at, ends_at) VALUES (",
            self.pauses
        ));
        sql.bind(self.key(request.aggregate_type.as_deref().unwrap_or_default()))
            .push(", ")
            .bind(storable_error(&request.reason))
            .push(", ")
            .bind(storable_error(&request.by))
            .push(&format!(", {}, ", self.now()));
        match request.lasts {
            Some(lasts) => {
                let lasts = sql.placeholder(micros(lasts));
                sql.push(&self.now_plus(&lasts));
            }
            None => {
                sql.push("NULL");
            }
        }
        sql.push(match self.backend {
            DbBackend::MySql => {
                ") ON DUPLICATE KEY UPDATE reason = VALUES(reason), paused_by = VALUES(paused_by), \
                 paused_at = VALUES(paused_at), ends_at = VALUES(ends_at)"
            }
            _ => {
                ") ON CONFLICT (aggregate_type) DO UPDATE SET reason = EXCLUDED.reason, paused_by = EXCLUDED.paused_by, \
                 paused_at = EXCLUDED.paused_at, ends_at = EXCLUDED.ends_at"
            }
        });
        sql.statement()
    }

    /// Ends the pause of a type, if it stands (primary key).
    pub(crate) fn unpause(&self, aggregate_type: Option<&str>) -> Statement {
        let now = self.now();
        let mut sql = self.sql(format!(
            "UPDATE {} SET ends_at = {now} WHERE (ends_at IS NULL OR ends_at > {now}) AND aggregate_type = ",
            self.pauses
        ));
        sql.bind(self.key(aggregate_type.unwrap_or_default()));
        sql.statement()
    }

    /// Reads which of these types are paused, and locks their pauses in share mode until the transaction ends (primary key, in its order): a pause cannot be
    /// finished meanwhile. SQLite needs no lock, because the transaction is the only writer.
    pub(crate) fn lock_standing_pauses(&self, types: &[Vec<u8>]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS aggregate_type FROM {} WHERE (ends_at IS NULL OR ends_at > {}) AND aggregate_type IN (",
            self.bytes("aggregate_type"),
            self.pauses,
            self.now(),
        ));
        for (n, aggregate_type) in types.iter().enumerate() {
            sql.push(if n == 0 { "" } else { ", " })
                .bind(self.type_of(aggregate_type));
        }
        sql.push(") ORDER BY aggregate_type");
        sql.push(match self.backend {
            DbBackend::Postgres => " FOR SHARE",
            // MariaDB has no FOR SHARE.
            DbBackend::MySql => " LOCK IN SHARE MODE",
            _ => "",
        });
        sql.statement()
    }

    /// Locks the first pause that has ended, and reads its type (primary key). Waits for settlements that hold messages for it.
    pub(crate) fn lock_ended_pause(&self) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS aggregate_type FROM {} WHERE ends_at <= {} ORDER BY aggregate_type LIMIT 1",
            self.bytes("aggregate_type"),
            self.pauses,
            self.now(),
        ));
        if self.backend != DbBackend::Sqlite {
            sql.push(" FOR UPDATE");
        }
        sql.statement()
    }

    /// Aggregates of a type that a pause holds, at most `limit` (index `outbox_blocks_due`: the blocks of one time). Locks nothing.
    pub(crate) fn held_blocks(&self, aggregate_type: &[u8], limit: i64) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS aggregate_type, {} AS aggregate_id FROM {} h WHERE h.blocked_until = ",
            self.bytes("h.aggregate_type"),
            self.bytes("h.aggregate_id"),
            self.blocks,
        ));
        let held = sql.placeholder(HELD_UNTIL);
        sql.push(&self.time(&held)).push(" AND h.aggregate_type = ");
        sql.bind(self.type_of(aggregate_type)).push(" LIMIT ").bind(limit);
        sql.statement()
    }

    /// Ends the blocks of these aggregates now, if a pause made them. The blocks must be locked.
    pub(crate) fn release_blocks(&self, keys: &[Key]) -> Statement {
        let table = &self.blocks;
        let mut sql = self.sql(format!(
            "UPDATE {table} SET blocked_until = {} WHERE halted_by IS NULL AND blocked_until = ",
            self.now()
        ));
        let held = sql.placeholder(HELD_UNTIL);
        sql.push(&self.time(&held)).push(" AND ");
        self.push_keys(&mut sql, table, keys);
        sql.statement()
    }

    /// Row ids of unsequenced messages of a type that a pause holds, at most `limit`. Reads the index of the waiting rows by partition and time, of one time,
    /// through all partitions (MySQL: the index of waiting rows).
    pub(crate) fn held_alone(&self, aggregate_type: &[u8], limit: i64) -> Statement {
        let mut sql = self.sql(format!("SELECT m.row_id FROM {} m", self.messages));
        sql.push(match self.backend {
            DbBackend::MySql => " WHERE m.status = 3 AND m.waiting_until = ",
            DbBackend::Postgres => " WHERE m.status::int4 = 3 AND m.sequence IS NULL AND m.partition_no BETWEEN 0 AND 63 AND m.available_at = ",
            _ => " WHERE m.status = 3 AND m.sequence IS NULL AND m.partition_no BETWEEN 0 AND 63 AND m.available_at = ",
        });
        let held = sql.placeholder(HELD_UNTIL);
        sql.push(&self.time(&held)).push(" AND m.aggregate_type = ");
        sql.bind(self.type_of(aggregate_type)).push(" LIMIT ").bind(limit);
        sql.statement()
    }

    /// Makes unsequenced messages due that a pause held (primary key, or the index of waiting rows by row id).
    pub(crate) fn release_alone(&self, row_ids: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET available_at = {} WHERE status = 3 AND available_at = ",
            self.messages,
            self.now()
        ));
        let held = sql.placeholder(HELD_UNTIL);
        sql.push(&self.time(&held)).push(" AND row_id").any(row_ids);
        sql.statement()
    }

    /// Removes a pause that has ended (primary key). It must be locked, and hold nothing.
    pub(crate) fn remove_pause(&self, aggregate_type: &[u8]) -> Statement {
        let mut sql = self.sql(format!("DELETE FROM {} WHERE aggregate_type = ", self.pauses));
        sql.bind(self.type_of(aggregate_type));
        sql.statement()
    }

    /// An aggregate type as a value of its column.
    fn type_of(&self, aggregate_type: &[u8]) -> Value {
        match self.backend {
            DbBackend::MySql => Value::Bytes(Some(aggregate_type.to_vec())),
            _ => Value::String(Some(String::from_utf8_lossy(aggregate_type).into_owned())),
        }
    }
}
