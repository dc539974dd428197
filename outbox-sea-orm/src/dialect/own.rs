//! SQL that fetches for a relay that shares the partitions with other relays: the first rows of each of its own partitions.
//!
//! Invariant: the rows and blocks of other partitions cost nothing, however many there are. So each partition is one look-up in an index that
//! begins with the partition, and reads no more rows than its share. PostgreSQL makes all look-ups in one statement (LATERAL). MariaDB and SQLite
//! cannot: there, one `SELECT` per partition reads row ids, and the caller sorts them and reads the rows. Nothing is locked.

use std::collections::HashMap;

use sea_orm::{DbBackend, Statement, Value};

use super::Dialect;
use super::fetch::Scope;
use super::key::Key;
use crate::sql::Sql;

impl Dialect {
    /// As [`Self::scan`], but from each partition only its share, in the order of their row ids.
    ///
    /// The condition on the status is the predicate of the index by partition and of no other index, so the planner cannot scan the pending rows of
    /// all partitions instead. It would do that while it believes that there are none, and the plan is cached for a minute.
    #[cfg(feature = "postgres")]
    pub(crate) fn scan_own(&self, scope: Scope<'_>) -> Statement {
        let mut sql = self.sql(format!("SELECT {}", self.scanned_columns()));
        push_each_own(&mut sql, scope.partitions, &self.messages, "m");
        sql.push(" AND m.status::int4 = 0");
        self.push_not_in_flight(&mut sql, scope.in_flight);
        push_limits(&mut sql, "m", "m.row_id", (scope.share(), scope.limit));
        sql.statement()
    }

    /// Unsequenced waiting messages that are due, from each partition its share, those first that have been due for longest (index of unsequenced
    /// waiting rows, with a predicate of its own as in [`Self::scan_own`]).
    #[cfg(feature = "postgres")]
    pub(crate) fn alone(&self, scope: Scope<'_>, excluding: &[Key]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {}, {} AS due_micros",
            self.columns(&self.payload()),
            self.micros_of_any("m.available_at")
        ));
        push_each_own(&mut sql, scope.partitions, &self.messages, "m");
        sql.push(" AND m.status::int4 = 3 AND m.sequence IS NULL AND m.available_at <= ")
            .push(self.statement_now());
        self.push_not_in_flight(&mut sql, scope.in_flight);
        self.push_not_of(&mut sql, "m", excluding);
        push_limits(&mut sql, "m", "m.available_at", (scope.share(), scope.limit));
        sql.statement()
    }

    /// Row ids of the first pending rows of each partition, as (`partition_no`, `place`, `row_id`). Reads only the index.
    pub(crate) fn first_pending(&self, partitions: &[i64], limit: i64) -> Statement {
        self.union(partitions, |sql, partition| {
            sql.push("SELECT m.partition_no, m.row_id AS place, m.row_id FROM ")
                .push(&self.messages)
                .push(" m");
            self.push_index(sql, &format!("{}_own", self.pending));
            sql.push(" WHERE m.status = 0 AND m.partition_no = ")
                .bind(partition);
            sql.push(" ORDER BY m.row_id LIMIT ").bind(limit);
        })
    }

    /// As [`Self::first_pending`], for unsequenced waiting rows that are due, in the order of their times.
    pub(crate) fn first_alone(&self, partitions: &[i64], limit: i64, excluding: &[Key]) -> Statement {
        let due = match self.backend {
            DbBackend::MySql => "m.waiting_until",
            _ => "m.available_at",
        };
        let excluding = by_partition(excluding);
        self.union(partitions, |sql, partition| {
            sql.push(&format!(
                "SELECT m.partition_no, {} AS place, m.row_id FROM {} m",
                self.micros_of_any(due),
                self.messages
            ));
            match self.backend {
                DbBackend::MySql => {
                    self.push_index(sql, &self.waiting);
                    sql.push(" WHERE m.waiting_key = ").bind(own_key(partition));
                }
                _ => {
                    self.push_index(sql, &format!("{}_until", self.waiting));
                    sql.push(" WHERE m.status = 3 AND m.sequence IS NULL AND m.partition_no = ")
                        .bind(partition);
                }
            }
            sql.push(&format!(" AND {due} <= {}", self.statement_now()));
            self.push_not_of(sql, "m", of_partition(&excluding, partition));
            sql.push(&format!(" ORDER BY {due} LIMIT ")).bind(limit);
        })
    }

    /// As [`Self::ended_blocks`], from each partition at most `share`. Ordered on PostgreSQL only.
    pub(crate) fn ended_blocks_own(&self, scope: Scope<'_>, share: i64, excluding: &[Key]) -> Statement {
        let columns = self.block_columns();
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            let mut sql = self.sql(format!("SELECT {columns}"));
            push_each_own(&mut sql, scope.partitions, &self.blocks, "h");
            // Without the predicate of the index by time, see `of_any_partition`, only the index by partition and time is left.
            sql.push(" AND h.blocked_until <= ").push(self.statement_now());
            self.push_not_of(&mut sql, "h", excluding);
            push_limits(&mut sql, "h", "h.blocked_until", (share, scope.limit));
            return sql.statement();
        }
        let excluding = by_partition(excluding);
        self.union(scope.partitions, |sql, partition| {
            sql.push(&format!("SELECT {columns} FROM {} h", self.blocks));
            self.push_index(sql, &self.blocks_own);
            sql.push(" WHERE h.partition_no = ").bind(partition);
            sql.push(" AND h.blocked_until <= ").push(self.statement_now());
            self.push_not_of(sql, "h", of_partition(&excluding, partition));
            sql.push(" ORDER BY h.blocked_until LIMIT ").bind(share);
        })
    }

    /// Pending sequenced messages with a row id below a bound per partition, at most `limit` of each partition: waiting messages must not overtake
    /// them. A scan has passed the row ids of waiting rows before, so there are few such messages beside those in flight.
    pub(crate) fn pending_below(&self, bounds: &[(i64, i64)], limit: i64) -> Statement {
        self.union(bounds, |sql, (partition, below)| {
            sql.push(&format!(
                "SELECT {} AS partition_no, m.row_id, {} AS aggregate_type, {} AS aggregate_id FROM {} m",
                self.int("m.partition_no"),
                self.bytes("m.aggregate_type"),
                self.bytes("m.aggregate_id"),
                self.messages
            ));
            self.push_index(sql, &format!("{}_own", self.pending));
            sql.push(match self.backend {
                DbBackend::Postgres => " WHERE m.status::int4 = 0",
                _ => " WHERE m.status = 0",
            });
            sql.push(" AND m.sequence IS NOT NULL AND m.partition_no = ")
                .bind(partition);
            sql.push(" AND m.row_id < ").bind(below);
            sql.push(" ORDER BY m.row_id LIMIT ");
            // The planner must not know the limit, as in the scan: it would sort if it expected fewer rows.
            let limit = sql.placeholder(limit);
            sql.push(&match self.backend {
                DbBackend::Postgres => format!("(SELECT {limit}::int8)"),
                _ => limit,
            });
        })
    }

    /// Makes one statement of a look-up per partition.
    fn union<P: Copy>(&self, partitions: &[P], look_up: impl Fn(&mut Sql, P)) -> Statement {
        let mut sql = self.sql("");
        for (n, partition) in partitions.iter().enumerate() {
            sql.push(if n == 0 { "" } else { " UNION ALL " });
            // SQLite does not allow parentheses around a part.
            sql.push(match self.backend {
                DbBackend::Sqlite => "SELECT * FROM (",
                _ => "(",
            });
            look_up(&mut sql, *partition);
            sql.push(")");
        }
        sql.statement()
    }

    /// Names the index, on databases where a query can.
    pub(super) fn push_index(&self, sql: &mut Sql, index: &str) {
        sql.push(&match self.backend {
            DbBackend::MySql => format!(" FORCE INDEX ({index})"),
            DbBackend::Sqlite => format!(" INDEXED BY {index}"),
            _ => String::new(),
        });
    }
}

/// The key of unsequenced waiting rows of a partition on MySQL, as the column is generated: one byte that is not zero, which differs from every aggregate's key.
pub(super) fn own_key(partition: i64) -> Value {
    Value::Bytes(u8::try_from(partition + 1).ok().map(|byte| vec![byte]))
}

/// Groups aggregates by partition, so that each look-up names only its own: the databases limit the number of values in a statement.
fn by_partition(keys: &[Key]) -> HashMap<i64, Vec<Key>> {
    let mut partitions: HashMap<i64, Vec<Key>> = HashMap::new();
    for key in keys {
        let partition = i64::from(key.partition());
        partitions.entry(partition).or_default().push(key.clone());
    }
    partitions
}

fn of_partition(keys: &HashMap<i64, Vec<Key>>, partition: i64) -> &[Key] {
    keys.get(&partition).map(Vec::as_slice).unwrap_or_default()
}

/// Appends the beginning of a look-up per partition; conditions follow, then [`push_limits`].
#[cfg(feature = "postgres")]
fn push_each_own(sql: &mut Sql, partitions: &[i64], table: &str, alias: &str) {
    let partitions = crate::sql::array(sea_orm::sea_query::ArrayType::BigInt, partitions.iter().copied());
    sql.push(" FROM pg_catalog.unnest(")
        .bind(partitions)
        .push(&format!(
            "::int8[]) AS own (partition_no) CROSS JOIN LATERAL (SELECT * FROM {table} {alias} \
         WHERE {alias}.partition_no = own.partition_no"
        ));
}

/// Appends the limit of each partition, which the planner must not know (see [`Dialect::scan`]), and the total limit, which it must know.
#[cfg(feature = "postgres")]
fn push_limits(sql: &mut Sql, alias: &str, order: &str, (share, limit): (i64, i64)) {
    let (share, limit) = (sql.placeholder(share), sql.placeholder(limit));
    sql.push(&format!(
        " ORDER BY {order} LIMIT (SELECT {share}::int8)) {alias} ORDER BY {order} LIMIT {limit}::int8"
    ));
}
