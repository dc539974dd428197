//! SQL fragments that differ between the databases.
//!
//! Invariant: only checked names and this crate's literals become text. All times come from the
//! database's clock, in microseconds since 1970.

use sea_orm::{DbBackend, Statement, Value};
use time::OffsetDateTime;

use super::{Sql, time_micros};
use crate::names::TableNames;

/// Increment of the sequence `outbox_row_ids` on PostgreSQL.
pub(crate) const ROW_IDS_PER_DRAW: usize = 10_000;

#[derive(Debug, Clone)]
pub(crate) struct Dialect {
    pub(crate) backend: DbBackend,
    pub(crate) messages: String,
    pub(crate) aggregates: String,
    /// SQL that draws the first of [`ROW_IDS_PER_DRAW`] row ids (PostgreSQL only).
    pub(crate) draw_row_ids: String,
    pub(crate) blocks: String,
    pub(crate) leases: String,
    pub(crate) relays: String,
    pub(crate) pauses: String,
    pub(crate) pending: String,
    pub(crate) waiting: String,
    pub(crate) blocks_own: String,
    pub(crate) dedup_keys: String,
    pub(crate) operations: String,
    pub(crate) log: String,
}

impl Dialect {
    pub(crate) fn new(backend: DbBackend, names: &TableNames) -> Self {
        // MySQL scopes index names to their table.
        let index = |name: &'static str| match backend {
            DbBackend::MySql => name.to_owned(),
            _ => names.unqualified(name),
        };
        Self {
            backend,
            messages: names.messages(backend),
            aggregates: names.aggregates(backend),
            draw_row_ids: format!(
                "pg_catalog.nextval('{}'::regclass)",
                names.table(backend, "outbox_row_ids")
            ),
            blocks: names.table(backend, "outbox_blocks"),
            leases: names.table(backend, "outbox_leases"),
            relays: names.table(backend, "outbox_relays"),
            pauses: names.table(backend, "outbox_pauses"),
            pending: match backend {
                DbBackend::MySql => "outbox_messages_status".to_owned(),
                _ => index("outbox_messages_pending"),
            },
            waiting: index("outbox_messages_waiting"),
            blocks_own: index("outbox_blocks_own"),
            dedup_keys: names.table(backend, "outbox_dedup_keys"),
            operations: names.table(backend, "outbox_operations"),
            log: names.table(backend, "outbox_log"),
        }
    }

    /// Current time: of the statement (SQLite, MySQL) or row (PostgreSQL), not of the transaction's
    /// start.
    pub(crate) fn now(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => "clock_timestamp()",
            DbBackend::MySql => "UTC_TIMESTAMP(6)",
            _ => "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000",
        }
    }

    pub(crate) fn statement_now(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => "statement_timestamp()",
            _ => self.now(),
        }
    }

    pub(crate) fn now_plus(&self, micros: &str) -> String {
        self.plus(self.now(), micros)
    }

    pub(crate) fn statement_now_plus(&self, micros: &str) -> String {
        self.plus(self.statement_now(), micros)
    }

    fn plus(&self, now: &str, micros: &str) -> String {
        match self.backend {
            DbBackend::Postgres => {
                format!("{now} + ({micros}::int8 OPERATOR(pg_catalog.*) interval '1 microsecond')")
            }
            DbBackend::MySql => format!("TIMESTAMPADD(MICROSECOND, {micros}, {now})"),
            _ => format!("{now} + {micros}"),
        }
    }

    pub(crate) fn time(&self, micros: &str) -> String {
        match self.backend {
            DbBackend::Postgres => {
                format!(
                    "timestamptz '1970-01-01 00:00:00+00' + (NULLIF({micros}, 0) OPERATOR(pg_catalog.*) interval '1 microsecond')"
                )
            }
            DbBackend::MySql => {
                format!("TIMESTAMPADD(MICROSECOND, NULLIF({micros}, 0), TIMESTAMP'1970-01-01 00:00:00')")
            }
            _ => format!("NULLIF({micros}, 0)"),
        }
    }

    pub(crate) fn micros(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Postgres => {
                format!("(extract(epoch FROM {column}) OPERATOR(pg_catalog.*) 1000000)::int8")
            }
            DbBackend::MySql => {
                format!("TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', {column})")
            }
            _ => column.to_owned(),
        }
    }

    /// Clamps times of other programs, such as PostgreSQL's `infinity`.
    pub(crate) fn micros_of_any(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Postgres => {
                let (first, last) = (
                    "timestamptz '1970-01-01 00:00:00+00'",
                    "timestamptz '9999-12-31 23:59:59+00'",
                );
                self.micros(&format!(
                    "CASE WHEN {column} < {first} THEN {first} WHEN {column} > {last} THEN {last} ELSE {column} END"
                ))
            }
            _ => self.micros(column),
        }
    }

    pub(crate) fn int(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!("{column}::int8"),
            _ => column.to_owned(),
        }
    }

    /// Damaged text may not be UTF-8.
    pub(crate) fn bytes(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!("pg_catalog.convert_to({column}, 'UTF8')"),
            DbBackend::MySql => column.to_owned(),
            _ => format!("CAST({column} AS BLOB)"),
        }
    }

    /// The function name is qualified, because an overload of `count` in another schema could match
    /// better.
    pub(crate) fn count_where(&self, condition: &str) -> String {
        let count = match self.backend {
            DbBackend::Postgres => "pg_catalog.count",
            _ => "count",
        };
        format!("{count}(CASE WHEN {condition} THEN 1 END)")
    }

    pub(crate) fn flag(&self, condition: &str) -> String {
        self.int(&format!("(CASE WHEN {condition} THEN 1 ELSE 0 END)"))
    }

    pub(crate) fn key(&self, key: impl AsRef<[u8]>) -> Value {
        match self.backend {
            DbBackend::MySql => Value::Bytes(Some(key.as_ref().to_vec())),
            _ => Value::String(Some(String::from_utf8_lossy(key.as_ref()).into_owned())),
        }
    }

    pub(crate) fn sql(&self, text: impl Into<String>) -> Sql {
        Sql::new(self.backend, text)
    }

    pub(crate) fn statement<const N: usize>(&self, text: &str, values: [Value; N]) -> Statement {
        self.sql("").push_with(text, values).statement()
    }

    pub(crate) fn key_columns(&self, alias: &str) -> String {
        let column = |name| format!("{} AS {name}", self.bytes(&format!("{alias}.{name}")));
        format!("{}, {}", column("aggregate_type"), column("aggregate_id"))
    }

    /// Complete the query with [`Self::push_limit`], which hides the limit from PostgreSQL's
    /// planner. With a visible limit, the planner may sort.
    pub(crate) fn limited(&self, select: &str) -> Sql {
        self.sql(match self.backend {
            DbBackend::Postgres => format!("SELECT * FROM ({select}"),
            _ => select.to_owned(),
        })
    }

    /// On PostgreSQL, only the limit of the outer query is visible to the planner, which prevents
    /// JIT compilation.
    pub(crate) fn push_limit(&self, sql: &mut Sql, order: &str, limit: i64) {
        let limit = sql.placeholder(limit);
        sql.push(&match self.backend {
            DbBackend::Postgres => {
                format!(" LIMIT (SELECT {limit}::int8)) limited ORDER BY {order} LIMIT {limit}::int8")
            }
            _ => format!(" LIMIT {limit}"),
        });
    }

    pub(crate) fn by_index(&self, index: &str) -> String {
        match self.backend {
            DbBackend::MySql => format!(" FORCE INDEX ({index})"),
            DbBackend::Sqlite => format!(" INDEXED BY {index}"),
            _ => String::new(),
        }
    }

    /// Without the index hint, MySQL would scan the table if the key list is long, and wait for
    /// business transactions.
    pub(crate) fn by_primary(&self) -> &'static str {
        match self.backend {
            DbBackend::MySql => " FORCE INDEX (PRIMARY)",
            _ => "",
        }
    }

    pub(crate) fn on_conflict(&self, key: &str, columns: &[&str]) -> String {
        let is_mysql = self.backend == DbBackend::MySql;
        let replaced: Vec<String> = columns
            .iter()
            .map(|column| match is_mysql {
                true => format!("{column} = VALUES({column})"),
                false => format!("{column} = EXCLUDED.{column}"),
            })
            .collect();
        let replaced = replaced.join(", ");
        match is_mysql {
            true => format!("ON DUPLICATE KEY UPDATE {replaced}"),
            false => format!("ON CONFLICT ({key}) DO UPDATE SET {replaced}"),
        }
    }

    pub(crate) fn for_update(&self) -> &'static str {
        match self.backend {
            DbBackend::Sqlite => "",
            _ => " FOR UPDATE",
        }
    }

    pub(crate) fn for_share(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => " FOR SHARE",
            DbBackend::MySql => " LOCK IN SHARE MODE",
            _ => "",
        }
    }

    /// A condition that is always true. PostgreSQL uses the index `outbox_blocks_due` only for
    /// queries with it.
    pub(crate) fn of_any_partition(&self, alias: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!(" AND {alias}.partition_no >= 0"),
            _ => String::new(),
        }
    }

    pub(crate) fn push_time(&self, sql: &mut Sql, comparison: &str, time: OffsetDateTime) {
        let micros = sql.placeholder(time_micros(time));
        sql.push(comparison).push(&self.time(&micros));
    }

    pub(crate) fn clock(&self) -> Statement {
        self.statement(&format!("SELECT {} AS now_micros", self.micros(self.now())), [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_of_row_ids_has_the_increment_of_the_writers() {
        let tables = include_str!("../migration/sql/outbox.postgres.sql");
        let increment = format!("outbox_row_ids INCREMENT BY {ROW_IDS_PER_DRAW})");
        assert!(tables.contains(&increment), "{increment}");
    }
}
