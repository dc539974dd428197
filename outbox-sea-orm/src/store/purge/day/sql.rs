//! SQL of daily tables.

use std::time::Duration;

use sea_orm::{DbBackend, Statement};
use uuid::Uuid;

use crate::sql::{Dialect, Sql, micros, uuids};

/// For how many days partitions are made ahead. If no relay purges for longer, new messages go to the default partition.
const DAYS_AHEAD: u8 = 3;

/// The upper half of the advisory lock's key; the lower one is the table.
const LOCK: i64 = 0x6f75_7462; // "outb"

/// The kind of the messages table: `p` if it is partitioned. No row if it is missing.
pub(super) fn table_kind(dialect: &Dialect) -> Statement {
    debug_assert_eq!(dialect.backend, DbBackend::Postgres);
    let text = "SELECT c.relkind::text AS kind FROM pg_class c WHERE c.oid = to_regclass(?)::oid";
    dialect.statement(text, [dialect.messages.as_str().into()])
}

/// Whether this user may make and drop days, if there are any.
pub(crate) fn rights_on_days(dialect: &Dialect) -> Statement {
    let text = "SELECT c.relkind <> 'p' OR (pg_has_role(c.relowner, 'USAGE') \
                AND has_schema_privilege(c.relnamespace, 'CREATE')) AS may FROM pg_class c WHERE c.oid = to_regclass(?)::oid";
    dialect.statement(text, [dialect.messages.as_str().into()])
}

/// The partition of rows without a daily table.
pub(super) fn default_day(dialect: &Dialect) -> String {
    format!("{}_default", dialect.messages)
}

/// Limits the wait for locks, until the end of the transaction.
pub(super) fn lock_timeout(timeout: Duration) -> String {
    format!("SET LOCAL lock_timeout = {}", timeout.as_millis())
}

/// Makes the partitions of today and the next days, if they are missing.
pub(super) fn make_days(dialect: &Dialect) -> Statement {
    let (make_day, now) = (&dialect.make_day, dialect.now());
    let text = format!(
        "SELECT {make_day}(({now} AT TIME ZONE 'UTC')::date + n) AS made FROM generate_series(0, {DAYS_AHEAD}) AS n"
    );
    dialect.statement(&text, [])
}

/// Days (`20260102`) that lie wholly before the retention, oldest first. Read from the names of the partitions; other names are left alone.
pub(super) fn old_days(dialect: &Dialect, older_than: Duration) -> Statement {
    let text = format!(
        "SELECT right(c.relname::text, 8) AS day FROM pg_class p JOIN pg_inherits i ON i.inhparent = p.oid \
         JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relnamespace = p.relnamespace \
         AND c.relname ~ ('^' || p.relname::text || '_[0-9]{{8}}$') AND p.oid = to_regclass(?)::oid \
         AND right(c.relname::text, 8) < to_char(({}) AT TIME ZONE 'UTC', 'YYYYMMDD') ORDER BY 1",
        dialect.now_plus("?")
    );
    dialect.statement(
        &text,
        [dialect.messages.as_str().into(), (-micros(older_than)).into()],
    )
}

/// Ids of the rows of a day that must stay, up to a limit. Reads the whole day, and blocks nobody.
pub(super) fn staying(dialect: &Dialect, day: &str, older_than: Duration, limit: i64) -> Statement {
    let mut sql = dialect.sql(format!("SELECT id FROM {} WHERE ", table(dialect, day)));
    push_stays(dialect, &mut sql, older_than);
    sql.push(" LIMIT ").bind(limit).statement()
}

/// Appends a condition: the row is unpublished, or was published within the retention.
fn push_stays(dialect: &Dialect, sql: &mut Sql, older_than: Duration) {
    sql.push("(status = 1");
    for column in ["created_at", "published_at"] {
        let age = sql.placeholder(-micros(older_than));
        sql.push(&format!(" AND {column} < {}", dialect.now_plus(&age)));
    }
    sql.push(") IS NOT TRUE");
}

/// Counts the rows of a day.
pub(super) fn count_day(dialect: &Dialect, day: &str) -> Statement {
    dialect.statement(
        &format!("SELECT count(*) AS rows FROM {}", table(dialect, day)),
        [],
    )
}

/// Takes the purge lock until the transaction ends, unless another purge has it.
pub(super) fn try_lock_days(dialect: &Dialect) -> Statement {
    let text = "SELECT pg_try_advisory_xact_lock(? | to_regclass(?)::oid::int8) AS locked";
    dialect.statement(text, [(LOCK << 32).into(), dialect.messages.as_str().into()])
}

/// Makes the planner find rows of a day through indexes, until the end of the transaction. Otherwise it would read the whole day, and compile
/// (JIT) the plan because it looks expensive.
pub(super) fn by_index_only() -> String {
    let off = ["enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"];
    off.map(|setting| format!("SET LOCAL {setting} = off")).join("; ")
}

/// Locks the messages against everybody.
pub(super) fn lock_messages(dialect: &Dialect) -> String {
    format!("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE", dialect.messages)
}

/// Detaches the partition of a day, which then is a table of its own.
pub(super) fn detach_day(dialect: &Dialect, day: &str) -> String {
    format!(
        "ALTER TABLE {} DETACH PARTITION {}",
        dialect.messages,
        table(dialect, day)
    )
}

/// Copies rows that stay from a detached day to the default partition.
pub(super) fn keep_staying(
    dialect: &Dialect,
    day: &str,
    known: &[Uuid],
    newer: Uuid,
    older_than: Duration,
) -> Statement {
    let mut sql = dialect.sql(format!(
        "INSERT INTO {} SELECT d.* FROM {} d WHERE d.id IN (",
        dialect.messages,
        table(dialect, day)
    ));
    push_staying(dialect, &mut sql, day, known, newer, older_than);
    sql.push(")").statement()
}

/// Ids of rows that stay, found through indexes while everybody waits: rows known from [`staying`], unpublished rows, and rows that
/// were inserted and published since then. The last kind are copies, which have new ids.
fn push_staying(
    dialect: &Dialect,
    sql: &mut Sql,
    day: &str,
    known: &[Uuid],
    newer: Uuid,
    older_than: Duration,
) {
    let day = table(dialect, day);
    let known = uuids(known.iter().copied());
    sql.push_with("SELECT pg_catalog.unnest(?::uuid[])", [known]);
    for status in [0, 2, 3] {
        sql.push(&format!(
            " UNION ALL SELECT id FROM {day} WHERE status = {status}"
        ));
    }
    sql.push_with(
        &format!(" UNION ALL SELECT id FROM {day} WHERE id >= ? AND "),
        [newer.into()],
    );
    push_stays(dialect, sql, older_than);
}

pub(super) fn drop_day(dialect: &Dialect, day: &str) -> String {
    format!("DROP TABLE {}", table(dialect, day))
}

fn table(dialect: &Dialect, day: &str) -> String {
    debug_assert!(day.len() == 8 && day.bytes().all(|b| b.is_ascii_digit()));
    format!("{}_{day}", dialect.messages)
}
