//! What differs between the three databases in small: times, integers, hints, locks.
//!
//! Pure functions from names and values to text; nothing here runs a statement. Invariant: only checked names and this
//! library's own literals become text; every value is bound. All times are the database's. As values they are microseconds
//! since 1970.

use sea_orm::{DbBackend, DbErr, Statement, Value};
use time::OffsetDateTime;

use super::{Sql, TIME_MICROS_MAX};
use crate::names::TableNames;

/// The first place of a replayed copy on PostgreSQL: more than any number of a message.
pub(crate) const COPIES_FROM: i64 = 1 << 62;

/// A database and the tables' names in it.
#[derive(Debug, Clone)]
pub(crate) struct Dialect {
    pub(crate) backend: DbBackend,
    pub(crate) messages: String,
    pub(crate) aggregates: String,
    pub(crate) blocks: String,
    pub(crate) leases: String,
    pub(crate) relays: String,
    pub(crate) pauses: String,
    /// The indexes of pending rows, of waiting rows, and of blocks by partition, for queries that must name them.
    pub(crate) pending: String,
    pub(crate) waiting: String,
    pub(crate) blocks_own: String,
    pub(crate) dedup_keys: String,
    pub(crate) operations: String,
    /// The table of a log relay's position, if there is one.
    pub(crate) log: String,
}

impl Dialect {
    pub(crate) fn new(backend: DbBackend, names: &TableNames) -> Self {
        // An index of MySQL belongs to its table, so its name has no prefix.
        let index = |name: &'static str| match backend {
            DbBackend::MySql => name.to_owned(),
            _ => names.unqualified(name),
        };
        Self {
            backend,
            messages: names.messages(backend),
            aggregates: names.aggregates(backend),
            blocks: names.blocks(backend),
            leases: names.leases(backend),
            relays: names.relays(backend),
            pauses: names.pauses(backend),
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

    /// The time at which the statement (SQLite, MySQL) or the row (PostgreSQL) is processed. Never the start of the transaction, which may be
    /// long ago.
    pub(crate) fn now(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => "clock_timestamp()",
            DbBackend::MySql => "UTC_TIMESTAMP(6)",
            _ => "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000",
        }
    }

    /// The time at which the statement began, the same for all its rows.
    pub(crate) fn statement_now(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => "statement_timestamp()",
            _ => self.now(),
        }
    }

    /// `now` plus microseconds.
    pub(crate) fn now_plus(&self, micros: &str) -> String {
        self.plus(self.now(), micros)
    }

    /// `statement_now` plus microseconds: the same for all rows, so that an index can be searched for it.
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

    /// A time from microseconds since 1970; null from 0.
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

    /// Microseconds since 1970 from a time.
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

    /// As [`Self::micros`], from a time that another program may have set to something that has no such number: `infinity` on PostgreSQL.
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

    /// A small integer column, as a 64-bit integer.
    pub(crate) fn int(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!("{column}::int8"),
            _ => column.to_owned(),
        }
    }

    /// A text column as bytes, so that it can be read even if it is not UTF-8.
    pub(crate) fn bytes(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!("pg_catalog.convert_to({column}, 'UTF8')"),
            DbBackend::MySql => column.to_owned(),
            _ => format!("CAST({column} AS BLOB)"),
        }
    }

    /// How many rows of a group fulfil the condition. `count` takes any type, so on PostgreSQL an overload for this type would match better.
    pub(crate) fn count_where(&self, condition: &str) -> String {
        let count = match self.backend {
            DbBackend::Postgres => "pg_catalog.count",
            _ => "count",
        };
        format!("{count}(CASE WHEN {condition} THEN 1 END)")
    }

    /// 1 where the condition holds, otherwise 0, as a 64-bit integer.
    pub(crate) fn flag(&self, condition: &str) -> String {
        self.int(&format!("(CASE WHEN {condition} THEN 1 ELSE 0 END)"))
    }

    /// The place of a sequenced row among the originals of its aggregate (its number) or, from
    /// [`COPIES_FROM`] on, among the replayed copies (its row id). MySQL and SQLite assign each row
    /// id above those in the table, so there the row id alone gives the order. PostgreSQL has this
    /// expression in two indexes.
    pub(crate) fn place(&self, alias: &str) -> String {
        match self.backend {
            DbBackend::Postgres => {
                format!(
                    "(CASE WHEN {alias}.event_id IS NULL THEN {alias}.sequence ELSE {alias}.row_id + {COPIES_FROM} END)"
                )
            }
            _ => format!("{alias}.row_id"),
        }
    }

    /// An aggregate's type or id, or a deduplication key: bytes on MySQL.
    pub(crate) fn key(&self, key: &str) -> Value {
        match self.backend {
            DbBackend::MySql => Value::Bytes(Some(key.as_bytes().to_vec())),
            _ => Value::String(Some(key.to_owned())),
        }
    }

    pub(crate) fn sql(&self, text: impl Into<String>) -> Sql {
        Sql::new(self.backend, text)
    }

    /// A statement in which each `?` stands for the next value.
    pub(crate) fn statement<const N: usize>(&self, text: &str, values: [Value; N]) -> Statement {
        self.sql("").push_with(text, values).statement()
    }

    /// Type and id of the aggregate of a row, as bytes.
    pub(crate) fn key_columns(&self, alias: &str) -> String {
        let column = |name| format!("{} AS {name}", self.bytes(&format!("{alias}.{name}")));
        format!("{}, {}", column("aggregate_type"), column("aggregate_id"))
    }

    /// Starts a query whose limit PostgreSQL must not know, and which ends with [`Self::push_limit`]. If the planner knew the
    /// limit and expected fewer rows, it would sort.
    pub(crate) fn limited(&self, select: &str) -> Sql {
        self.sql(match self.backend {
            DbBackend::Postgres => format!("SELECT * FROM ({select}"),
            _ => select.to_owned(),
        })
    }

    /// Ends a query that [`Self::limited`] started. The planner knows the outer limit, which makes the whole look as cheap as
    /// it is; otherwise the server compiles the plan (JIT), which takes longer than running it.
    pub(crate) fn push_limit(&self, sql: &mut Sql, order: &str, limit: i64) {
        let limit = sql.placeholder(limit);
        sql.push(&match self.backend {
            DbBackend::Postgres => {
                format!(" LIMIT (SELECT {limit}::int8)) limited ORDER BY {order} LIMIT {limit}::int8")
            }
            _ => format!(" LIMIT {limit}"),
        });
    }

    /// Names the index that a query must use. PostgreSQL takes no hint.
    pub(crate) fn by_index(&self, index: &str) -> String {
        match self.backend {
            DbBackend::MySql => format!(" FORCE INDEX ({index})"),
            DbBackend::Sqlite => format!(" INDEXED BY {index}"),
            _ => String::new(),
        }
    }

    /// Makes MySQL look rows up in the primary key. For many rows its optimizer would scan the table, and a scan that locks
    /// waits for the rows of business transactions.
    pub(crate) fn by_primary(&self) -> &'static str {
        match self.backend {
            DbBackend::MySql => " FORCE INDEX (PRIMARY)",
            _ => "",
        }
    }

    /// The clause that replaces these columns if a row with the same key exists.
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

    /// Locks rows. SQLite needs no lock, because a transaction is the only writer.
    pub(crate) fn for_update(&self) -> &'static str {
        match self.backend {
            DbBackend::Sqlite => "",
            _ => " FOR UPDATE",
        }
    }

    /// Locks rows against changes. MariaDB has no FOR SHARE.
    pub(crate) fn for_share(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => " FOR SHARE",
            DbBackend::MySql => " LOCK IN SHARE MODE",
            _ => "",
        }
    }

    /// A condition that every block fulfils. On PostgreSQL it is the predicate of the index `outbox_blocks_due` and of no
    /// other, so that a query without it cannot be answered by that index.
    pub(crate) fn of_any_partition(&self, alias: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!(" AND {alias}.partition_no >= 0"),
            _ => String::new(),
        }
    }

    /// Appends a comparison with a time. The database keeps microseconds, so the time is rounded up.
    pub(crate) fn push_time(&self, sql: &mut Sql, comparison: &str, time: OffsetDateTime) {
        let micros = (time.unix_timestamp_nanos() + 999).div_euclid(1000);
        let micros = i64::try_from(micros)
            .unwrap_or(TIME_MICROS_MAX)
            .clamp(1, TIME_MICROS_MAX);
        let micros = sql.placeholder(micros);
        sql.push(comparison).push(&self.time(&micros));
    }

    /// The database's time.
    pub(crate) fn clock(&self) -> Statement {
        self.statement(&format!("SELECT {} AS now_micros", self.micros(self.now())), [])
    }
}

/// The error for a database that this build does not support.
pub(crate) fn unsupported(backend: DbBackend) -> DbErr {
    DbErr::Custom(format!(
        "outbox-sea-orm was built without {backend:?}; enable its feature `postgres`, `mysql` or `sqlite`"
    ))
}
