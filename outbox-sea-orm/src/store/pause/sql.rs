//! SQL of pauses.

use outbox_core::PauseRequest;
use outbox_core::message::PARTITIONS;
use outbox_core::store::storable_error;
use sea_orm::{DbBackend, Statement};

use crate::sql::{Dialect, Sql, micros};
use crate::store::fetch::partition::sql::{by_unsequenced_index, own_key, unsequenced_due};

/// 9000-01-01 00:00:00 UTC in microseconds since 1970.
const HELD_FROM: i64 = 221_845_392_000_000_000;

/// Times of held messages are one second apart, because PostgreSQL's fractions are exact only to 32
/// microseconds in the year 9000.
const HELD_TIMES: i64 = 1 << 24;

pub(crate) const HELD_BETWEEN: (i64, i64) = (HELD_FROM - 1_000_000, HELD_FROM + HELD_TIMES * 1_000_000);

/// Returns the fake time that marks messages held by a pause of the aggregate type. The index finds
/// them by this time. Two types may share a time, so queries also compare the type. The times must
/// not change: stored rows and other versions use them.
pub(crate) fn held_until(aggregate_type: &[u8]) -> i64 {
    // FNV-1a.
    let hash = aggregate_type.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    HELD_FROM + i64::from(hash) % HELD_TIMES * 1_000_000
}

pub(crate) fn pauses(dialect: &Dialect) -> Statement {
    let text = format!(
        "SELECT {} AS aggregate_type, reason, paused_by, {} AS since_micros, {} AS ends_micros, {} AS now_micros FROM {} p \
         ORDER BY p.aggregate_type",
        dialect.bytes("aggregate_type"),
        dialect.micros_of_any("paused_at"),
        dialect.micros_of_any("ends_at"),
        dialect.micros(dialect.statement_now()),
        dialect.pauses,
    );
    dialect.statement(&text, [])
}

pub(crate) fn pause(dialect: &Dialect, request: &PauseRequest) -> Statement {
    let text = format!(
        "INSERT INTO {} (aggregate_type, reason, paused_by, paused_at, ends_at) VALUES (?, ?, ?, {}, {}) {}",
        dialect.pauses,
        dialect.now(),
        dialect.now_plus("?"),
        dialect.on_conflict("aggregate_type", &["reason", "paused_by", "paused_at", "ends_at"])
    );
    let values = [
        dialect.key(request.aggregate_type.as_deref().unwrap_or_default()),
        storable_error(&request.reason).into(),
        storable_error(&request.by).into(),
        request.lasts.map(micros).into(),
    ];
    dialect.statement(&text, values)
}

pub(crate) fn unpause(dialect: &Dialect, aggregate_type: Option<&str>) -> Statement {
    let now = dialect.now();
    let text = format!(
        "UPDATE {} SET ends_at = {now} WHERE (ends_at IS NULL OR ends_at > {now}) AND aggregate_type = ?",
        dialect.pauses
    );
    dialect.statement(&text, [dialect.key(aggregate_type.unwrap_or_default())])
}

/// Locks standing pauses against finishing, in primary key order.
pub(crate) fn lock_standing(dialect: &Dialect, types: &[Vec<u8>]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {} AS aggregate_type FROM {} WHERE (ends_at IS NULL OR ends_at > {}) AND aggregate_type IN ",
        dialect.bytes("aggregate_type"),
        dialect.pauses,
        dialect.now(),
    ));
    sql.bind_rows([types.iter().map(|aggregate_type| dialect.key(aggregate_type))]);
    sql.push(" ORDER BY aggregate_type")
        .push(dialect.for_share())
        .statement()
}

/// Locks ended pauses. The lock waits for settlements that hold messages for the pause.
pub(crate) fn lock_ended(dialect: &Dialect) -> Statement {
    let text = format!(
        "SELECT {} AS aggregate_type FROM {} WHERE ends_at <= {} ORDER BY aggregate_type LIMIT 1{}",
        dialect.bytes("aggregate_type"),
        dialect.pauses,
        dialect.now(),
        dialect.for_update(),
    );
    dialect.statement(&text, [])
}

pub(crate) fn held_blocks(dialect: &Dialect, aggregate_type: &[u8], limit: i64) -> Statement {
    let text = format!(
        "SELECT {} FROM {} h WHERE h.halted_by IS NULL{} AND h.blocked_until = {} AND h.aggregate_type = ? LIMIT ?",
        dialect.key_columns("h"),
        dialect.blocks,
        dialect.of_any_partition("h"),
        dialect.time("?"),
    );
    let held = held_until(aggregate_type);
    dialect.statement(&text, [held.into(), dialect.key(aggregate_type), limit.into()])
}

pub(crate) fn held_rows(dialect: &Dialect, aggregate_type: &[u8], limit: i64) -> Statement {
    let mut sql = dialect.sql(format!("SELECT m.row_id FROM {} m", dialect.messages));
    push_unsequenced_waiting(dialect, &mut sql);
    let due = unsequenced_due(dialect);
    let text = format!(
        " AND {due} = {} AND m.aggregate_type = ? LIMIT ?",
        dialect.time("?")
    );
    let held = held_until(aggregate_type);
    sql.push_with(&text, [held.into(), dialect.key(aggregate_type), limit.into()])
        .statement()
}

/// The caller must add a condition on the time, for the index search.
fn push_unsequenced_waiting(dialect: &Dialect, sql: &mut Sql) {
    let partitions = 0..i64::from(PARTITIONS);
    sql.push(&by_unsequenced_index(dialect));
    if dialect.backend == DbBackend::MySql {
        sql.push(" WHERE m.waiting_key IN ")
            .bind_rows([partitions.map(own_key)]);
        return;
    }
    sql.push(match dialect.backend {
        DbBackend::Postgres => " WHERE m.status::int4 = 3",
        _ => " WHERE m.status = 3",
    });
    sql.push(" AND m.sequence IS NULL AND m.partition_no")
        .any(&partitions.collect::<Vec<_>>());
}

pub(crate) fn first_held_block(dialect: &Dialect, between: (i64, i64)) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {} AS aggregate_type, {} AS held_micros FROM {} h WHERE ",
        dialect.bytes("h.aggregate_type"),
        dialect.micros_of_any("h.blocked_until"),
        dialect.blocks,
    ));
    push_between(dialect, &mut sql, "h.blocked_until", between);
    sql.push(&dialect.of_any_partition("h"));
    sql.push(" ORDER BY h.blocked_until LIMIT 1").statement()
}

pub(crate) fn first_held_rows(dialect: &Dialect, between: (i64, i64)) -> Statement {
    let held = unsequenced_due(dialect);
    let mut sql = dialect.sql(format!(
        "SELECT {} AS aggregate_type, {} AS held_micros FROM {} m",
        dialect.bytes("m.aggregate_type"),
        dialect.micros_of_any(held),
        dialect.messages,
    ));
    push_unsequenced_waiting(dialect, &mut sql);
    sql.push(" AND ");
    push_between(dialect, &mut sql, held, between);
    sql.push(&format!(" ORDER BY {held} LIMIT 1")).statement()
}

fn push_between(dialect: &Dialect, sql: &mut Sql, column: &str, (after, before): (i64, i64)) {
    let time = dialect.time("?");
    sql.push_with(
        &format!("{column} > {time} AND {column} < {time}"),
        [after.into(), before.into()],
    );
}

pub(crate) fn knows_type(dialect: &Dialect, aggregate_type: &str, recent: i64) -> Statement {
    let text = format!(
        "SELECT 1 AS known WHERE EXISTS (SELECT 1 FROM {} a WHERE a.aggregate_type = ?) \
         OR EXISTS (SELECT 1 FROM (SELECT m.aggregate_type FROM {} m ORDER BY m.id DESC LIMIT ?) r \
         WHERE r.aggregate_type = ?)",
        dialect.aggregates, dialect.messages
    );
    let key = dialect.key(aggregate_type);
    dialect.statement(&text, [key.clone(), recent.into(), key])
}

pub(crate) fn release_rows(dialect: &Dialect, aggregate_type: &[u8], row_ids: &[i64]) -> Statement {
    let text = format!(
        "UPDATE {} SET available_at = {} WHERE status = 3 AND available_at = {} AND row_id",
        dialect.messages,
        dialect.now(),
        dialect.time("?")
    );
    let mut sql = dialect.sql("");
    sql.push_with(&text, [held_until(aggregate_type).into()])
        .any(row_ids)
        .statement()
}

/// The pause must be locked, and hold no message.
pub(crate) fn remove(dialect: &Dialect, aggregate_type: &[u8]) -> Statement {
    let text = format!("DELETE FROM {} WHERE aggregate_type = ?", dialect.pauses);
    dialect.statement(&text, [dialect.key(aggregate_type)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_times_never_change() {
        let of = |name: &str| (held_until(name.as_bytes()) - HELD_FROM) / 1_000_000;
        assert_eq!(
            [of("order"), of("account"), of("")],
            [2_887_831, 5_228_380, 1_875_397]
        );
    }

    #[test]
    fn pause_times_are_exact_fractions_in_the_year_9000() {
        for name in ["order", "account", "Order", "a", "b"] {
            let time = held_until(name.as_bytes());
            assert_eq!(time % 32, 0);
            let days = (time - HELD_FROM) / 86_400_000_000;
            assert!((0..365).contains(&days), "{days}");
        }
    }
}
