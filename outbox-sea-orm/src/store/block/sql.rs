//! SQL of blocks.

use outbox_core::Aggregate;
use sea_orm::{DbBackend, Statement, Value};

use super::Block;
use crate::sql::{Dialect, Key, Sql, bind_keys};

/// Locks blocks in primary key order.
pub(crate) fn lock(dialect: &Dialect, keys: &[Key]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {}, {} AS due_micros, h.halted_by FROM ",
        dialect.key_columns("h"),
        dialect.micros("h.blocked_until")
    ));
    if dialect.backend == DbBackend::Postgres {
        push_block_of_each(dialect, &mut sql, keys, "*", " FOR UPDATE");
        return sql.statement();
    }
    sql.push(&format!("{} h{} WHERE ", dialect.blocks, dialect.by_primary()));
    dialect.push_keys(&mut sql, "h", keys);
    sql.push(" ORDER BY h.aggregate_type, h.aggregate_id")
        .push(dialect.for_update());
    sql.statement()
}

/// With stale statistics, a join would compare each block with each key.
fn push_block_of_each(dialect: &Dialect, sql: &mut Sql, keys: &[Key], columns: &str, rest: &str) {
    let (aggregate_type, id) = (r#"aggregate_type COLLATE "C""#, r#"aggregate_id COLLATE "C""#);
    sql.push(&format!(
        "(SELECT DISTINCT {aggregate_type} AS aggregate_type, {id} AS aggregate_id FROM unnest("
    ));
    bind_keys(sql, keys);
    sql.push(&format!(
        ") AS k (aggregate_type, aggregate_id) ORDER BY 1, 2) k CROSS JOIN LATERAL (SELECT {columns} FROM {} b \
         WHERE b.aggregate_type = k.aggregate_type AND b.aggregate_id = k.aggregate_id{rest}) h",
        dialect.blocks
    ));
}

/// The blocks must be locked, so that each `ctid` stays valid.
fn push_blocks_of(dialect: &Dialect, sql: &mut Sql, keys: &[Key], also: impl Fn(&str) -> String) {
    if dialect.backend == DbBackend::Postgres {
        sql.push("ctid = ANY(ARRAY(SELECT h.ctid FROM ");
        // OFFSET prevents a join, which could scan all blocks.
        push_block_of_each(dialect, sql, keys, "b.ctid", &format!("{} OFFSET 0", also("b")));
        sql.push("))");
        return;
    }
    dialect.push_keys(sql, &dialect.blocks, keys);
    sql.push(&also(&dialect.blocks));
}

/// A halted aggregate stays halted.
pub(crate) fn put(dialect: &Dialect, blocks: &[(&Key, &Block)]) -> Statement {
    let alias = match dialect.backend {
        DbBackend::MySql => "",
        _ => " AS block",
    };
    let mut sql = dialect.sql(format!(
        "INSERT INTO {}{alias} (aggregate_type, aggregate_id, partition_no, blocked_until, halted_by) VALUES ",
        dialect.blocks
    ));
    for (n, (key, block)) in blocks.iter().enumerate() {
        let [aggregate_type, id] = dialect.bind_key(&mut sql, key);
        let partition = sql.placeholder(block.partition);
        let due = dialect.time(&sql.placeholder(block.due_micros.unwrap_or_default()));
        let halted_by = sql.placeholder(Value::BigInt(block.halted_by));
        sql.push(if n == 0 { "(" } else { ", (" });
        sql.push(&format!(
            "{aggregate_type}, {id}, {partition}, {due}, {halted_by})"
        ));
    }
    sql.push(match dialect.backend {
        DbBackend::MySql => {
            " ON DUPLICATE KEY UPDATE blocked_until = IF(halted_by IS NULL, VALUES(blocked_until), blocked_until), \
             halted_by = COALESCE(halted_by, VALUES(halted_by))"
        }
        _ => {
            " ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET blocked_until = excluded.blocked_until, \
             halted_by = excluded.halted_by WHERE block.halted_by IS NULL"
        }
    });
    sql.statement()
}

/// A separate, earlier statement must lock the blocks. Only then does the snapshot of this
/// statement include all messages that earlier lock holders made waiting.
pub(crate) fn end(dialect: &Dialect, keys: &[Key]) -> Statement {
    let mut sql = dialect.sql(format!("DELETE FROM {} WHERE ", dialect.blocks));
    push_blocks_of(dialect, &mut sql, keys, |block| {
        let waiting = waiting_where(dialect, "w", block);
        format!(" AND {block}.halted_by IS NULL AND (SELECT w.row_id FROM {waiting} LIMIT 1) IS NULL")
    });
    sql.statement()
}

/// Use this condition only in scalar subqueries: a hashed subquery would read all waiting rows.
pub(crate) fn waiting_where(dialect: &Dialect, alias: &str, other: &str) -> String {
    let messages = &dialect.messages;
    let hint = dialect.by_index(&dialect.waiting);
    let status = match dialect.backend {
        DbBackend::MySql => {
            return format!(
                "{messages} {alias}{hint} WHERE {alias}.waiting_until IS NULL \
                 AND {alias}.waiting_key = CONCAT({other}.aggregate_type, x'00', {other}.aggregate_id)"
            );
        }
        DbBackend::Postgres => "status::int8",
        _ => "status",
    };
    format!(
        "{messages} {alias}{hint} WHERE {alias}.{status} = 3 AND {alias}.sequence IS NOT NULL \
         AND {alias}.aggregate_type = {other}.aggregate_type AND {alias}.aggregate_id = {other}.aggregate_id"
    )
}

/// Ends the blocks and their halts. The blocks must be locked. With a condition on the time, the
/// planner could read all blocks of a pause for each key.
pub(crate) fn release(dialect: &Dialect, keys: &[Key]) -> Statement {
    let mut sql = dialect.sql(format!(
        "UPDATE {}{} SET blocked_until = {}, halted_by = NULL WHERE ",
        dialect.blocks,
        dialect.by_primary(),
        dialect.now()
    ));
    push_blocks_of(dialect, &mut sql, keys, |_| String::new());
    sql.statement()
}

pub(crate) fn resume(dialect: &Dialect, aggregate: &Aggregate) -> Statement {
    let now = dialect.now();
    let mut sql = dialect.sql(format!(
        "UPDATE {} SET blocked_until = CASE WHEN blocked_until > {now} THEN {now} ELSE blocked_until END WHERE halted_by IS NULL AND ",
        dialect.blocks
    ));
    dialect.push_key(&mut sql, &dialect.blocks, &Key::from(aggregate));
    sql.statement()
}

pub(crate) fn blocked(dialect: &Dialect, limit: i64) -> Statement {
    let mut sql = dialect.sql(format!(
        "{} ORDER BY {}, h.blocked_until, h.aggregate_type, h.aggregate_id LIMIT ",
        select(dialect),
        dialect.flag("h.halted_by IS NULL"),
    ));
    sql.bind(limit).statement()
}

pub(crate) fn select(dialect: &Dialect) -> String {
    format!(
        "SELECT {}, h.halted_by, {} AS due_micros, {} AS now_micros FROM {} h",
        dialect.key_columns("h"),
        dialect.micros("h.blocked_until"),
        dialect.micros(dialect.statement_now()),
        dialect.blocks,
    )
}

pub(crate) fn block(dialect: &Dialect, aggregate: &Aggregate) -> Statement {
    let mut sql = dialect.sql(format!("{} WHERE ", select(dialect)));
    dialect.push_key(&mut sql, "h", &Key::from(aggregate));
    sql.statement()
}
