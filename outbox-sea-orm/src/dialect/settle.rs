//! SQL of settlements and of blocks.

use outbox_core::store::RowKey;
use sea_orm::{DbBackend, Statement, Value};

use super::Dialect;
use super::key::Key;
use crate::sql::Sql;

/// Selects rows by row id and message id, in partitions whose lease is locked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) partitions: &'a [i64],
    pub(crate) keys: &'a [RowKey],
    /// Whether the rows are waiting; otherwise they are pending.
    pub(crate) waited: bool,
}

/// The new state of a block.
#[derive(Debug, Clone)]
pub(crate) struct NewBlock {
    pub(crate) key: Key,
    pub(crate) partition: i64,
    /// When the block ends, in microseconds since 1970; `None` if the aggregate is halted.
    pub(crate) due_micros: Option<i64>,
    pub(crate) halted_by: Option<i64>,
}

/// The change of a row after a failure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Failure {
    pub(crate) dead: bool,
    pub(crate) attempt: bool,
    /// The text of the failure, which is counted; `None` counts none.
    pub(crate) error: Option<String>,
    /// When an unsequenced row is due again, in microseconds since 1970.
    pub(crate) until_micros: Option<i64>,
}

impl Dialect {
    /// Reads the aggregates of rows, and whether the rows are delayed. Uses the index of pending rows, or of waiting rows, by row id (MySQL: the
    /// primary key).
    pub(crate) fn rows_to_settle(&self, rows: Rows<'_>) -> Statement {
        let now = self.statement_now();
        let (place, of_oldest) = (self.place("m"), self.place("e"));
        // The oldest waiting row of the aggregate, if a verdict may need it: one look-up in the index of waiting rows.
        let needed = if rows.waited {
            format!("m.available_at > {now}")
        } else {
            "m.sequence IS NOT NULL".to_owned()
        };
        let oldest = format!(
            "CASE WHEN {needed} THEN (SELECT {of_oldest} FROM {} ORDER BY {of_oldest} LIMIT 1) END",
            self.waiting_where("e", "m"),
        );
        let mut sql = self.sql(format!(
            "SELECT m.row_id, m.id, {} AS partition_no, {} AS aggregate_type, {} AS aggregate_id, {} AS is_sequenced, \
             {} AS is_delayed, {} AS available_micros, {} AS now_micros, COALESCE({place}, m.row_id) AS place, {oldest} AS oldest_place FROM {} m",
            self.int("m.partition_no"),
            self.bytes("m.aggregate_type"),
            self.bytes("m.aggregate_id"),
            self.flag("m.sequence IS NOT NULL"),
            self.flag(&format!("m.available_at > {now}")),
            self.micros_of_any("m.available_at"),
            self.micros(now),
            self.messages,
        ));
        self.push_rows(&mut sql, rows);
        sql.statement()
    }

    /// Marks rows as published, or deletes them. Takes row locks only. A pending row that is kept leaves the index of pending rows; no other index
    /// changes.
    pub(crate) fn settle_published(&self, rows: Rows<'_>, keep: bool) -> Statement {
        let mut sql = self.sql(match (keep, self.backend) {
            (true, _) => {
                let by_primary = self.by_primary();
                format!(
                    "UPDATE {}{by_primary} SET status = 1, published_at = {}",
                    self.messages,
                    self.now()
                )
            }
            // Only this form of DELETE takes a hint.
            (false, DbBackend::MySql) => {
                format!("DELETE m FROM {} m{}", self.messages, self.by_primary())
            }
            (false, _) => format!("DELETE FROM {}", self.messages),
        });
        self.push_rows(&mut sql, rows);
        sql.statement()
    }

    /// Makes pending rows waiting.
    pub(crate) fn set_waiting(&self, rows: Rows<'_>) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {}{} SET status = 3",
            self.messages,
            self.by_primary()
        ));
        self.push_rows(&mut sql, rows);
        sql.statement()
    }

    /// Records a failure: the rows become waiting, or dead.
    pub(crate) fn settle_failed(&self, rows: Rows<'_>, failure: &Failure) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {}{} SET status = {}",
            self.messages,
            self.by_primary(),
            if failure.dead { 2 } else { 3 }
        ));
        if failure.attempt {
            sql.push(", attempts = attempts + 1");
        }
        if let Some(error) = &failure.error {
            sql.push(", failures = failures + 1, last_error = ")
                .bind(error.as_str());
        }
        if let Some(until) = failure.until_micros {
            let until = sql.placeholder(until);
            sql.push(", available_at = ").push(&self.time(&until));
        }
        self.push_rows(&mut sql, rows);
        sql.statement()
    }

    /// Makes MySQL look rows up in the primary key. For many rows its optimizer would scan the table, and a scan that locks waits for the rows of business
    /// transactions.
    pub(super) fn by_primary(&self) -> &'static str {
        match self.backend {
            DbBackend::MySql => " FORCE INDEX (PRIMARY)",
            _ => "",
        }
    }

    /// Appends the conditions on rows: the index of pending or of waiting rows (MySQL: the primary key).
    fn push_rows(&self, sql: &mut Sql, rows: Rows<'_>) {
        sql.push(if rows.waited {
            " WHERE status = 3 AND "
        } else {
            " WHERE status = 0 AND "
        });
        self.push_rows_of(sql, rows.keys);
        sql.push(" AND ");
        self.push_partitions(sql, "partition_no", rows.partitions);
    }

    /// Reads the blocks of these aggregates and locks them until the transaction ends: primary key, in its order, as operators lock them. SQLite
    /// needs no lock.
    pub(crate) fn lock_blocks(&self, keys: &[Key]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS aggregate_type, {} AS aggregate_id, {} AS due_micros, h.halted_by FROM ",
            self.bytes("h.aggregate_type"),
            self.bytes("h.aggregate_id"),
            self.micros("h.blocked_until"),
        ));
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            self.push_block_of_each(&mut sql, keys, "*", " FOR UPDATE");
            return sql.statement();
        }
        sql.push(&format!("{} h{} WHERE ", self.blocks, self.by_primary()));
        self.push_keys(&mut sql, "h", keys);
        sql.push(" ORDER BY h.aggregate_type, h.aggregate_id");
        if self.backend != DbBackend::Sqlite {
            sql.push(" FOR UPDATE");
        }
        sql.statement()
    }

    /// Appends `h`, these columns of the blocks of the keys, by one look-up for each key in their order. A condition on a list of keys is not looked up: with
    /// statistics from before a burst of blocks PostgreSQL would compare each block with each key.
    #[cfg(feature = "postgres")]
    fn push_block_of_each(&self, sql: &mut Sql, keys: &[Key], columns: &str, rest: &str) {
        let (aggregate_type, id) = (r#"aggregate_type COLLATE "C""#, r#"aggregate_id COLLATE "C""#);
        sql.push(&format!(
            "(SELECT DISTINCT {aggregate_type} AS aggregate_type, {id} AS aggregate_id FROM unnest("
        ));
        super::key::bind_keys(sql, keys);
        sql.push(&format!(
            ") AS k (aggregate_type, aggregate_id) ORDER BY 1, 2) k CROSS JOIN LATERAL (SELECT {columns} FROM {} b \
             WHERE b.aggregate_type = k.aggregate_type AND b.aggregate_id = k.aggregate_id{rest}) h",
            self.blocks
        ));
    }

    /// Appends a condition on a block that is changed: it is of one of these keys, and `also` holds. The blocks must be locked, so that the rows which PostgreSQL
    /// finds by their places are still there.
    pub(super) fn push_blocks_of(&self, sql: &mut Sql, keys: &[Key], also: impl Fn(&str) -> String) {
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            sql.push("ctid = ANY(ARRAY(SELECT h.ctid FROM ");
            // The offset keeps the look-ups apart: as a join they could be a scan of all blocks.
            self.push_block_of_each(sql, keys, "b.ctid", &format!("{} OFFSET 0", also("b")));
            sql.push("))");
            return;
        }
        self.push_keys(sql, &self.blocks, keys);
        sql.push(&also(&self.blocks));
    }

    /// Creates blocks, or changes their times. A halted aggregate stays halted.
    pub(crate) fn put_blocks(&self, blocks: &[NewBlock]) -> Statement {
        let table = &self.blocks;
        let columns = "(aggregate_type, aggregate_id, partition_no, blocked_until, halted_by)";
        let mut sql = self.sql("");
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            use sea_orm::sea_query::ArrayType;

            let numbers = |number: fn(&NewBlock) -> i64| {
                crate::sql::array(ArrayType::BigInt, blocks.iter().map(number))
            };
            sql.push(&format!(
                "INSERT INTO {table} AS block {columns} SELECT n.aggregate_type, n.aggregate_id, n.partition_no, {}, \
                 NULLIF(n.halted_by, 0) FROM unnest(",
                self.time("n.due"),
            ));
            super::key::bind_keys(&mut sql, blocks.iter().map(|block| &block.key));
            sql.push(", ").bind(numbers(|block| block.partition));
            sql.push("::int8[], ")
                .bind(numbers(|block| block.due_micros.unwrap_or_default()));
            sql.push("::int8[], ")
                .bind(numbers(|block| block.halted_by.unwrap_or_default()));
            sql.push(
                "::int8[]) AS n (aggregate_type, aggregate_id, partition_no, due, halted_by) \
                 ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET blocked_until = EXCLUDED.blocked_until, \
                 halted_by = EXCLUDED.halted_by WHERE block.halted_by IS NULL",
            );
            return sql.statement();
        }
        sql.push(&format!("INSERT INTO {table} {columns} VALUES "));
        for (n, block) in blocks.iter().enumerate() {
            let [aggregate_type, id] = self.bind_key(&mut sql, &block.key);
            let partition = sql.placeholder(block.partition);
            let due = sql.placeholder(block.due_micros.unwrap_or_default());
            let halted_by = sql.placeholder(Value::BigInt(block.halted_by));
            sql.push(if n == 0 { "(" } else { ", (" }).push(&format!(
                "{aggregate_type}, {id}, {partition}, {}, {halted_by})",
                self.time(&due)
            ));
        }
        sql.push(match self.backend {
            DbBackend::MySql => {
                " ON DUPLICATE KEY UPDATE blocked_until = IF(halted_by IS NULL, VALUES(blocked_until), blocked_until), \
                 halted_by = COALESCE(halted_by, VALUES(halted_by))"
            }
            _ => {
                " ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET blocked_until = excluded.blocked_until, \
                 halted_by = excluded.halted_by WHERE halted_by IS NULL"
            }
        });
        sql.statement()
    }

    /// Removes the blocks of these aggregates, except where the aggregate is halted or a message waits. An earlier statement has locked the blocks,
    /// so the snapshot of this one shows all messages that an earlier owner of the lock made waiting.
    pub(crate) fn end_blocks(&self, keys: &[Key]) -> Statement {
        let mut sql = self.sql(format!("DELETE FROM {} WHERE ", self.blocks));
        self.push_blocks_of(&mut sql, keys, |block| {
            let waiting = self.waiting_where("w", block);
            format!(" AND {block}.halted_by IS NULL AND (SELECT w.row_id FROM {waiting} LIMIT 1) IS NULL")
        });
        sql.statement()
    }

    /// `messages w WHERE …`: the waiting rows of another row's aggregate, through their index. For scalar subqueries, which are one look-up each; if
    /// the planner could hash them, it would read all waiting rows.
    pub(crate) fn waiting_where(&self, alias: &str, other: &str) -> String {
        let messages = &self.messages;
        match self.backend {
            DbBackend::MySql => format!(
                "{messages} {alias} FORCE INDEX ({}) WHERE {alias}.waiting_until IS NULL \
                 AND {alias}.waiting_key = CONCAT({other}.aggregate_type, x'00', {other}.aggregate_id)",
                self.waiting
            ),
            DbBackend::Postgres => format!(
                "{messages} {alias} WHERE {alias}.status::int8 = 3 AND {alias}.sequence IS NOT NULL \
                 AND {alias}.aggregate_type = {other}.aggregate_type AND {alias}.aggregate_id = {other}.aggregate_id"
            ),
            _ => format!(
                "{messages} {alias} INDEXED BY {} WHERE {alias}.status = 3 AND {alias}.sequence IS NOT NULL \
                 AND {alias}.aggregate_type = {other}.aggregate_type AND {alias}.aggregate_id = {other}.aggregate_id",
                self.waiting
            ),
        }
    }
}
