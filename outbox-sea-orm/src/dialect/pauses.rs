//! SQL of pauses. The table has a few rows. A pause of all messages has the empty aggregate type.

use outbox_core::PauseRequest;
use outbox_core::message::PARTITIONS;
use outbox_core::store::storable_error;
use sea_orm::{DbBackend, Statement, Value};

use super::key::Key;
use super::own::own_key;
use super::{Dialect, micros};
use crate::sql::Sql;

/// Where the times begin that stand for pauses: 9000-01-01 00:00:00 UTC in microseconds since 1970.
const HELD_FROM: i64 = 221_845_392_000_000_000;

/// The number of such times, a second apart: PostgreSQL computes with fractions, which are exact to 32 microseconds there.
const HELD_TIMES: i64 = 1 << 24;

/// All times that stand for pauses lie between these two, in microseconds since 1970.
pub(crate) const HELD_BETWEEN: (i64, i64) = (HELD_FROM - 1_000_000, HELD_FROM + HELD_TIMES * 1_000_000);

/// The end of a block, or the time of an unsequenced message, that lasts until the pause of a type is finished, in microseconds since 1970. It tells them
/// from other blocks and times. Each type has its own, so that the indexes by time find what one pause holds beside what others hold. It must stay as it is: a
/// type in different versions of this library has the same. Two types may share a time, so the type is compared as well.
pub(crate) fn held_until(aggregate_type: &[u8]) -> i64 {
    // FNV-1a.
    let hash = aggregate_type.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    HELD_FROM + i64::from(hash) % HELD_TIMES * 1_000_000
}

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

    /// Aggregates of a type that a pause holds, at most `limit` (index `outbox_blocks_due`: the blocks of the time of that pause). Locks nothing.
    pub(crate) fn held_blocks(&self, aggregate_type: &[u8], limit: i64) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS aggregate_type, {} AS aggregate_id FROM {} h WHERE h.halted_by IS NULL{} AND h.blocked_until = ",
            self.bytes("h.aggregate_type"),
            self.bytes("h.aggregate_id"),
            self.blocks,
            self.of_any_partition("h"),
        ));
        let held = sql.placeholder(held_until(aggregate_type));
        sql.push(&self.time(&held)).push(" AND h.aggregate_type = ");
        sql.bind(self.type_of(aggregate_type)).push(" LIMIT ").bind(limit);
        sql.statement()
    }

    /// Ends these blocks now (primary key). They must be locked, and a pause must have made them. The time of the pause is no condition here: the planner could
    /// search for it, and read all that the pause holds for each block.
    pub(crate) fn release_blocks(&self, keys: &[Key]) -> Statement {
        let (table, by_primary, now) = (&self.blocks, self.by_primary(), self.now());
        let mut sql = self.sql(format!(
            "UPDATE {table}{by_primary} SET blocked_until = {now} WHERE "
        ));
        self.push_blocks_of(&mut sql, keys, |_| String::new());
        sql.statement()
    }

    /// Row ids of unsequenced messages of a type that a pause holds, at most `limit`: one look-up for each partition, of the time of that pause (index of
    /// unsequenced waiting rows by partition and time). Locks nothing.
    pub(crate) fn held_alone(&self, aggregate_type: &[u8], limit: i64) -> Statement {
        let mut sql = self.sql(format!("SELECT m.row_id FROM {} m", self.messages));
        self.push_unsequenced_waiting(&mut sql);
        sql.push(match self.backend {
            DbBackend::MySql => " AND m.waiting_until = ",
            _ => " AND m.available_at = ",
        });
        let held = sql.placeholder(held_until(aggregate_type));
        sql.push(&self.time(&held)).push(" AND m.aggregate_type = ");
        sql.bind(self.type_of(aggregate_type)).push(" LIMIT ").bind(limit);
        sql.statement()
    }

    /// Appends the conditions of unsequenced waiting rows, by partition. A condition on their time follows, so that the index is searched for it.
    fn push_unsequenced_waiting(&self, sql: &mut Sql) {
        let partitions = 0..i64::from(PARTITIONS);
        if self.backend == DbBackend::MySql {
            self.push_index(sql, &self.waiting);
            sql.push(" WHERE m.waiting_key IN ");
            sql.bind_rows([partitions.map(own_key)]);
            return;
        }
        self.push_index(sql, &format!("{}_until", self.waiting));
        sql.push(match self.backend {
            DbBackend::Postgres => " WHERE m.status::int4 = 3",
            _ => " WHERE m.status = 3",
        });
        sql.push(" AND m.sequence IS NULL AND m.partition_no")
            .any(&partitions.collect::<Vec<_>>());
    }

    /// The first block whose end stands for a pause and lies between two times, as (`aggregate_type`, `held_micros`) (index `outbox_blocks_due`). Locks nothing.
    pub(crate) fn first_held_block(&self, between: (i64, i64)) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS aggregate_type, {} AS held_micros FROM {} h WHERE ",
            self.bytes("h.aggregate_type"),
            self.micros_of_any("h.blocked_until"),
            self.blocks,
        ));
        self.push_between(&mut sql, "h.blocked_until", between);
        sql.push(&self.of_any_partition("h"));
        sql.push(" ORDER BY h.blocked_until LIMIT 1").statement()
    }

    /// As [`Self::first_held_block`], for unsequenced messages (index as in [`Self::held_alone`]).
    pub(crate) fn first_held_alone(&self, between: (i64, i64)) -> Statement {
        let held = match self.backend {
            DbBackend::MySql => "m.waiting_until",
            _ => "m.available_at",
        };
        let mut sql = self.sql(format!(
            "SELECT {} AS aggregate_type, {} AS held_micros FROM {} m",
            self.bytes("m.aggregate_type"),
            self.micros_of_any(held),
            self.messages,
        ));
        self.push_unsequenced_waiting(&mut sql);
        sql.push(" AND ");
        self.push_between(&mut sql, held, between);
        sql.push(&format!(" ORDER BY {held} LIMIT 1")).statement()
    }

    fn push_between(&self, sql: &mut Sql, column: &str, (after, before): (i64, i64)) {
        let (after, before) = (sql.placeholder(after), sql.placeholder(before));
        sql.push(&format!(
            "{column} > {} AND {column} < {}",
            self.time(&after),
            self.time(&before)
        ));
    }

    /// Whether there is an aggregate of a type, as a row (primary key), or a message of it among the last `recent` ones (index of ids, from its end).
    pub(crate) fn knows_type(&self, aggregate_type: &str, recent: i64) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT 1 AS known WHERE EXISTS (SELECT 1 FROM {} a WHERE a.aggregate_type = ",
            self.aggregates
        ));
        sql.bind(self.key(aggregate_type)).push(&format!(
            ") OR EXISTS (SELECT 1 FROM (SELECT m.aggregate_type FROM {} m ORDER BY m.id DESC LIMIT ",
            self.messages
        ));
        sql.bind(recent).push(") r WHERE r.aggregate_type = ");
        sql.bind(self.key(aggregate_type)).push(")");
        sql.statement()
    }

    /// Makes unsequenced messages of a type due that a pause held (primary key, or the index of waiting rows by row id).
    pub(crate) fn release_alone(&self, aggregate_type: &[u8], row_ids: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET available_at = {} WHERE status = 3 AND available_at = ",
            self.messages,
            self.now()
        ));
        let held = sql.placeholder(held_until(aggregate_type));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of earlier versions would stay held otherwise.
    #[test]
    fn the_times_of_pauses_stay() {
        let of = |name: &str| (held_until(name.as_bytes()) - HELD_FROM) / 1_000_000;
        assert_eq!(
            [of("order"), of("account"), of("")],
            [2_887_831, 5_228_380, 1_875_397]
        );
    }

    #[test]
    fn each_time_of_a_pause_is_exact_as_a_fraction_and_in_the_year_9000() {
        for name in ["order", "account", "Order", "a", "b"] {
            let time = held_until(name.as_bytes());
            // A fraction has 53 bits, and these times have 58.
            assert_eq!(time % 32, 0);
            let days = (time - HELD_FROM) / 86_400_000_000;
            assert!((0..365).contains(&days), "{days}");
        }
    }
}
