//! SQL text for the three databases.
//!
//! Pure functions from names and values to a [`Statement`]; nothing here runs a statement. SQL of the same shape for all databases is in this
//! file and in those named after an operation; SQL of another shape is in [`postgres`], [`mysql`] and [`sqlite`]. Invariant: only checked names
//! and this library's own literals become text; every value is bound. All times are the database's. As values they are microseconds since 1970.

#[cfg(feature = "postgres")]
pub(crate) mod days;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;

pub(crate) mod admin;
mod backlog;
pub(crate) mod columns;
pub(crate) mod dedup;
pub(crate) mod fetch;
pub(crate) mod forget;
pub(crate) mod ids;
pub(crate) mod key;
pub(crate) mod leases;
pub(crate) mod logged;
pub(crate) mod mysql;
pub(crate) mod operations;
pub(crate) mod own;
mod page;
pub(crate) mod pauses;
pub(crate) mod reader;
pub(crate) mod relays;
mod search;
pub(crate) mod security;
pub(crate) mod settle;
pub(crate) mod sqlite;
mod values;

use outbox_core::{Aggregate, NewMessage};
use sea_orm::{DbBackend, DbErr, Statement, Value};

pub(crate) use self::values::{TIME_MICROS_MAX, delay_micros, headers_json, keys, micros};
use crate::names::TableNames;
use crate::sql::Sql;

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
    operations: String,
    /// The table of a log relay's position, if there is one.
    log: String,
    /// With daily tables: the function that makes a day.
    #[cfg(feature = "postgres")]
    pub(crate) make_day: String,
}

impl Dialect {
    pub(crate) fn new(backend: DbBackend, names: &TableNames) -> Self {
        let pending = match backend {
            DbBackend::MySql => "outbox_messages_status".to_owned(),
            _ => names.unqualified("outbox_messages_pending"),
        };
        Self {
            backend,
            messages: names.messages(backend),
            aggregates: names.aggregates(backend),
            blocks: names.blocks(backend),
            leases: names.leases(backend),
            relays: names.relays(backend),
            pauses: names.pauses(backend),
            pending,
            waiting: match backend {
                DbBackend::MySql => "outbox_messages_waiting".to_owned(),
                _ => names.unqualified("outbox_messages_waiting"),
            },
            blocks_own: match backend {
                DbBackend::MySql => "outbox_blocks_own".to_owned(),
                _ => names.unqualified("outbox_blocks_own"),
            },
            dedup_keys: names.table(backend, "outbox_dedup_keys"),
            operations: names.table(backend, "outbox_operations"),
            log: names.table(backend, "outbox_log"),
            #[cfg(feature = "postgres")]
            make_day: names.table(backend, "outbox_make_day"),
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

    /// All messages, in the order in which they were recorded. For tests, because it reads the whole table.
    #[cfg(feature = "testing")]
    pub(crate) fn recorded(&self) -> Statement {
        self.sql(format!(
            "SELECT {} FROM {} m ORDER BY m.row_id",
            self.columns(&self.payload()),
            self.messages
        ))
        .statement()
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

    /// Inserts messages in their order. `numbers` has their sequences, -1 for an unsequenced message. The databases number the rows of one
    /// statement in its order.
    pub(crate) fn insert_rows(&self, messages: &[NewMessage], numbers: &[i64]) -> Statement {
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            return postgres::insert_many(self, messages, numbers, postgres::Sequences::Given);
        }
        let mut sql = self.sql(format!(
            "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, \
             subject, content_type, payload, headers, dedup_key, available_at, created_at) VALUES ",
            self.messages
        ));
        for (n, (message, number)) in messages.iter().zip(numbers).enumerate() {
            sql.push(if n == 0 { "(" } else { ", (" });
            let [aggregate_type, aggregate_id] = keys(self, message.aggregate());
            let values = [
                Value::from(message.id().as_uuid()),
                Value::from(i64::from(message.aggregate().partition())),
                aggregate_type,
                aggregate_id,
                Value::BigInt((*number >= 0).then_some(*number)),
                Value::from(message.event_type()),
                Value::from(i64::from(message.event_version())),
                Value::from(message.subject().map(str::to_owned)),
                Value::from(message.content_type()),
                Value::from(message.payload().to_vec()),
                Value::from(headers_json(message)),
                match message.dedup_key() {
                    Some(key) => self.key(key),
                    None => Value::String(None),
                },
            ];
            for value in values {
                sql.bind(value).push(", ");
            }
            let delay = sql.placeholder(delay_micros(message));
            sql.push(&self.time(&delay)).push(", ").push(self.now()).push(")");
        }
        sql.statement()
    }
}

/// Appends the values of head rows: type, id, the number of messages, and the time.
fn push_heads(sql: &mut Sql, dialect: &Dialect, heads: &[(Aggregate, i64)]) {
    for (n, (aggregate, count)) in heads.iter().enumerate() {
        sql.push(if n == 0 { "(" } else { ", (" });
        let [aggregate_type, id] = keys(dialect, aggregate);
        sql.bind(aggregate_type)
            .push(", ")
            .bind(id)
            .push(", ")
            .bind(*count);
        sql.push(", ").push(dialect.now()).push(")");
    }
}

/// The error for a database that this build does not support.
pub(crate) fn unsupported(backend: DbBackend) -> DbErr {
    DbErr::Custom(format!(
        "outbox-sea-orm was built without {backend:?}; enable its feature `postgres`, `mysql` or `sqlite`"
    ))
}
