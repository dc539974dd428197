//! SQL that fetches. It reads snapshots and locks nothing.
//!
//! A relay that owns all partitions scans one index in its order. A relay that shares them with others looks at each of its own ([`super::own`]).

use outbox_core::message::PARTITIONS;
use outbox_core::store::RowKey;
use sea_orm::{DbBackend, Statement};

#[cfg(feature = "postgres")]
use super::COPIES_FROM;
use super::Dialect;
use super::key::Key;
use crate::sql::Sql;

/// The predicate of the index of pending rows by aggregate and of no other.
#[cfg(feature = "postgres")]
const PENDING_OF: &str = "m.status::int8 = 0";

/// Where to fetch, what to leave out, and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) partitions: &'a [i64],
    /// Rows to leave out.
    pub(crate) in_flight: &'a [RowKey],
    /// Most rows of the result.
    pub(crate) limit: i64,
}

impl Scope<'_> {
    /// Whether these are all partitions, so that no other relay owns one.
    pub(crate) fn owns_all(&self) -> bool {
        self.partitions.len() >= usize::from(PARTITIONS)
    }

    /// How many rows of each partition are read: an equal part of the limit, at least one.
    pub(crate) fn share(&self) -> i64 {
        (self.limit / (self.partitions.len().max(1) as i64)).max(1)
    }
}

impl Dialect {
    /// Pending messages in the order of their row ids, whether they may be published or not. Those that have to wait come with a null payload, which
    /// makes scanning them cheap. For a relay that owns all partitions.
    ///
    /// The plan must scan the index of pending rows in its order and stop at the limit, whatever the statistics: a plan that sorts the backlog takes
    /// seconds per batch. Measured with missing, stale and fresh statistics, this is ensured as follows:
    ///
    /// * PostgreSQL: the planner does not know the limit of the inner query, so it assumes a tenth of the rows and compares plans by their ratio;
    ///   with a known limit above its estimate of the rows, it would sort. It knows the outer limit, which makes the whole look as cheap as it is;
    ///   otherwise the server compiles the plan (JIT), which takes longer than running it. Conditions have the form `… <> 0`, which the planner
    ///   expects to remove next to nothing.
    /// * MySQL: FORCE INDEX keeps the planner from scanning the primary key, which is the table with all its published rows.
    /// * SQLite: INDEXED BY does the same.
    ///
    /// On every database, whether the aggregate is blocked is a scalar subquery: one look-up in the primary key of the blocks. If the planner could turn
    /// it into a join or a hash, each fetch would read all blocks, or lose the order.
    pub(crate) fn scan(&self, scope: Scope<'_>) -> Statement {
        debug_assert!(scope.owns_all());
        let select = format!("SELECT {} FROM {} m", self.scanned_columns(), self.messages);
        let mut sql = self.sql(match self.backend {
            DbBackend::Postgres => format!("SELECT * FROM ({select}"),
            DbBackend::MySql => format!("{select} FORCE INDEX ({})", self.pending),
            _ => format!("{select} INDEXED BY {}", self.pending),
        });
        sql.push(" WHERE m.status = 0");
        self.push_not_in_flight(&mut sql, scope.in_flight);
        let limit = sql.placeholder(scope.limit);
        sql.push(&match self.backend {
            DbBackend::Postgres => {
                format!(
                    " ORDER BY m.row_id LIMIT (SELECT {limit}::int8)) scanned ORDER BY row_id LIMIT {limit}::int8"
                )
            }
            _ => format!(" ORDER BY m.row_id LIMIT {limit}"),
        });
        sql.statement()
    }

    /// Pending messages with these row ids, in their order (primary key), with the columns of [`Self::scan`].
    pub(crate) fn scan_rows(&self, row_ids: &[i64]) -> Statement {
        let columns = self.scanned_columns();
        let mut sql = self.sql(format!(
            "SELECT {columns} FROM {} m WHERE m.status = 0 AND m.row_id",
            self.messages
        ));
        sql.any(row_ids);
        sql.push(" ORDER BY m.row_id");
        sql.statement()
    }

    pub(super) fn scanned_columns(&self) -> String {
        let (blocks, now, payload) = (&self.blocks, self.statement_now(), self.payload());
        let force = match self.backend {
            DbBackend::MySql => "FORCE INDEX (PRIMARY) ",
            _ => "",
        };
        // Evaluated once per statement. Mostly there is no block, and then it saves half of the scan's time (measured).
        let any_block = match self.backend {
            DbBackend::Postgres => format!("(SELECT EXISTS (SELECT 1 FROM {blocks})) AND "),
            _ => String::new(),
        };
        self.columns(&format!(
            "CASE WHEN m.available_at > {now} THEN NULL WHEN m.sequence IS NOT NULL AND {any_block}(SELECT 1 FROM {blocks} h \
             {force}WHERE h.aggregate_type = m.aggregate_type AND h.aggregate_id = m.aggregate_id) IS NOT NULL \
             THEN NULL ELSE {payload} END"
        ))
    }

    /// Blocks that have ended, in the order of their ends (index `outbox_blocks_due`). For a relay that owns all partitions. PostgreSQL must not know the inner limit,
    /// as in [`Self::scan`]: it would sort if it expected fewer blocks.
    pub(crate) fn ended_blocks(&self, scope: Scope<'_>, excluding: &[Key]) -> Statement {
        let is_postgres = self.backend == DbBackend::Postgres;
        let mut sql = self.sql(if is_postgres { "SELECT * FROM (" } else { "" });
        sql.push(&format!(
            "SELECT {} FROM {} h WHERE h.blocked_until <= {}{}",
            self.block_columns(),
            self.blocks,
            self.statement_now(),
            self.of_any_partition("h"),
        ));
        self.push_not_of(&mut sql, "h", excluding);
        let limit = sql.placeholder(scope.limit);
        sql.push(" ORDER BY h.blocked_until LIMIT ");
        sql.push(&match is_postgres {
            true => format!("(SELECT {limit}::int8)) ended ORDER BY due_micros LIMIT {limit}::int8"),
            false => limit,
        });
        sql.statement()
    }

    /// A condition that every block fulfils. On PostgreSQL it is the predicate of the index `outbox_blocks_due` and of no other, so that a query which does not have it
    /// cannot be answered by that index.
    pub(super) fn of_any_partition(&self, alias: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!(" AND {alias}.partition_no >= 0"),
            _ => String::new(),
        }
    }

    /// The first waiting originals, and as many replayed copies, of each of these aggregates, by place
    /// (index `outbox_messages_waiting`). Reads no more rows than it returns: an aggregate may have
    /// 100,000. Delayed messages come with a null payload.
    #[cfg(feature = "postgres")]
    pub(crate) fn waiting_of(&self, keys: &[Key], in_flight: &[RowKey], per_aggregate: i64) -> Statement {
        let columns = self.waiting_columns();
        self.first_of(&columns, "m.status::int8 = 3", keys, in_flight, per_aggregate)
    }

    /// As [`Self::waiting_of`], of the pending messages (index `outbox_messages_pending_of`), with
    /// the columns of [`Self::scan`].
    #[cfg(feature = "postgres")]
    pub(crate) fn pending_of(&self, keys: &[Key], in_flight: &[RowKey], per_aggregate: i64) -> Statement {
        let columns = self.scanned_columns();
        self.first_of(&columns, PENDING_OF, keys, in_flight, per_aggregate)
    }

    /// The places of the first pending original and of the first pending copy of each of these
    /// aggregates that are not in flight.
    #[cfg(feature = "postgres")]
    pub(crate) fn first_pending_of(&self, keys: &[Key], in_flight: &[RowKey]) -> Statement {
        let columns = format!(
            "{} AS aggregate_type, {} AS aggregate_id, {} AS place",
            self.bytes("m.aggregate_type"),
            self.bytes("m.aggregate_id"),
            self.place("m")
        );
        self.first_of(&columns, PENDING_OF, keys, in_flight, 1)
    }

    /// Rows of each aggregate: the first originals and the first copies, by place. `status` is the
    /// predicate of one index and of no other, as in [`Self::scan_own`].
    #[cfg(feature = "postgres")]
    fn first_of(
        &self,
        columns: &str,
        status: &str,
        keys: &[Key],
        in_flight: &[RowKey],
        per_aggregate: i64,
    ) -> Statement {
        debug_assert_eq!(self.backend, DbBackend::Postgres);
        let place = self.place("m");
        let mut sql = self.sql(format!("SELECT {columns} FROM unnest("));
        super::key::bind_keys(&mut sql, keys);
        sql.push(") AS h (aggregate_type, aggregate_id) CROSS JOIN LATERAL (");
        for (n, kind) in ["<", ">="].into_iter().enumerate() {
            sql.push(if n == 0 { "(" } else { ") UNION ALL (" });
            sql.push(&format!(
                "SELECT * FROM {} m WHERE {status} AND m.sequence IS NOT NULL \
                 AND m.aggregate_type = h.aggregate_type COLLATE \"C\" AND m.aggregate_id = h.aggregate_id COLLATE \"C\" \
                 AND {place} {kind} {COPIES_FROM}",
                self.messages
            ));
            self.push_not_in_flight(&mut sql, in_flight);
            sql.push(&format!(" ORDER BY {place} LIMIT ")).bind(per_aggregate);
        }
        sql.push(&format!(")) m ORDER BY {place}"));
        sql.statement()
    }

    /// Returns each given aggregate whose message with the given number is pending and not in
    /// flight. One look-up per aggregate in the index of pending rows by aggregate.
    #[cfg(feature = "postgres")]
    pub(crate) fn pending_among(&self, messages: &[(Key, i64)], in_flight: &[RowKey]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS aggregate_type, {} AS aggregate_id FROM unnest(",
            self.bytes("h.aggregate_type"),
            self.bytes("h.aggregate_id")
        ));
        super::key::bind_keys(&mut sql, messages.iter().map(|(key, _)| key));
        sql.push(", ").bind(crate::sql::array(
            sea_orm::sea_query::ArrayType::BigInt,
            messages.iter().map(|(_, sequence)| *sequence),
        ));
        sql.push("::int8[]) AS h (aggregate_type, aggregate_id, sequence)");
        sql.push(&format!(
            " CROSS JOIN LATERAL (SELECT m.sequence FROM {} m WHERE {PENDING_OF} AND m.sequence IS NOT NULL \
             AND m.aggregate_type = h.aggregate_type COLLATE \"C\" AND m.aggregate_id = h.aggregate_id COLLATE \"C\" \
             AND {} = h.sequence",
            self.messages,
            self.place("m")
        ));
        self.push_not_in_flight(&mut sql, in_flight);
        sql.push(" LIMIT 1) m");
        sql.statement()
    }

    /// As `waiting_of`, but only row ids, with the place of their aggregate in `keys` (MariaDB and SQLite have no LATERAL). Reads only the index.
    pub(crate) fn waiting_row_ids_of(&self, keys: &[Key], limit: i64) -> Statement {
        let messages = &self.messages;
        let mut sql = self.sql("");
        for (n, key) in keys.iter().enumerate() {
            sql.push(if n == 0 { "" } else { " UNION ALL " });
            let [aggregate_type, id] = self.bind_key(&mut sql, key);
            sql.push(&match self.backend {
                DbBackend::MySql => format!(
                    "(SELECT m.row_id, {n} AS key_no FROM {messages} m FORCE INDEX ({}) \
                     WHERE m.waiting_key = CONCAT({aggregate_type}, x'00', {id}) AND m.waiting_until IS NULL",
                    self.waiting
                ),
                _ => format!(
                    "SELECT * FROM (SELECT m.row_id, {n} AS key_no FROM {messages} m INDEXED BY {} WHERE m.status = 3 \
                     AND m.sequence IS NOT NULL AND m.aggregate_type = {aggregate_type} AND m.aggregate_id = {id}",
                    self.waiting
                ),
            });
            sql.push(" ORDER BY m.row_id LIMIT ").bind(limit).push(")");
        }
        sql.statement()
    }

    /// Waiting rows with these row ids, in their order (primary key).
    pub(crate) fn waiting_rows(&self, row_ids: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} FROM {} m WHERE m.status = 3 AND m.row_id",
            self.waiting_columns(),
            self.messages
        ));
        sql.any(row_ids);
        sql.push(" ORDER BY m.row_id");
        sql.statement()
    }

    fn waiting_columns(&self) -> String {
        let now = self.statement_now();
        self.columns(&format!(
            "CASE WHEN m.available_at > {now} THEN NULL ELSE {} END",
            self.payload()
        ))
    }

    /// Unsequenced waiting rows with these row ids, those first that have been due for longest (primary key).
    pub(crate) fn alone_rows(&self, row_ids: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {}, {} AS due_micros FROM {} m WHERE m.status = 3 AND m.row_id",
            self.columns(&self.payload()),
            self.micros_of_any("m.available_at"),
            self.messages
        ));
        sql.any(row_ids);
        sql.push(" ORDER BY m.available_at, m.row_id");
        sql.statement()
    }

    pub(super) fn block_columns(&self) -> String {
        format!(
            "{} AS aggregate_type, {} AS aggregate_id, {} AS due_micros",
            self.bytes("h.aggregate_type"),
            self.bytes("h.aggregate_id"),
            self.micros("h.blocked_until")
        )
    }

    /// Appends a condition: the row of `table` belongs to none of these aggregates.
    pub(super) fn push_not_of(&self, sql: &mut Sql, table: &str, excluding: &[Key]) {
        if !excluding.is_empty() {
            sql.push(" AND CASE WHEN ");
            self.push_keys(sql, table, excluding);
            sql.push(" THEN 0 ELSE 1 END <> 0");
        }
    }
}
