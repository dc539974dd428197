//! SQL text for the three databases.
//!
//! Everything here is a pure function from names and values to a [`Statement`]; nothing runs anything. What the databases say alike is in
//! this file, what differs in shape in [`postgres`], [`mysql`] and [`sqlite`]. Invariant: only validated names and literals of ours
//! become text, every value is bound. Times are the database's own, in microseconds since 1970 where they cross this border.

#[cfg(feature = "postgres")]
pub(crate) mod postgres;

pub(crate) mod mysql;
pub(crate) mod sqlite;

use outbox_core::{Aggregate, NewMessage};
use sea_orm::{DbBackend, DbErr, Statement, Value};

use crate::insert::{delay_micros, headers_json};
use crate::names::TableNames;
use crate::sql::Sql;

/// A database and the tables' names in it.
#[derive(Debug, Clone)]
pub(crate) struct Dialect {
    pub(crate) backend: DbBackend,
    pub(crate) messages: String,
    pub(crate) aggregates: String,
    pub(crate) leases: String,
    /// The index of pending rows, where a query must name it.
    pub(crate) pending: String,
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
            leases: names.leases(backend),
            pending,
        }
    }

    /// The clock when the statement (SQLite, MySQL) or the row (PostgreSQL) is processed. Never the start of the transaction, which may
    /// be long ago.
    pub(crate) fn now(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => "clock_timestamp()",
            DbBackend::MySql => "UTC_TIMESTAMP(6)",
            _ => "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000",
        }
    }

    /// `now` plus microseconds.
    pub(crate) fn now_plus(&self, micros: &str) -> String {
        let now = self.now();
        match self.backend {
            DbBackend::Postgres => format!("{now} + {micros}::int8 * interval '1 microsecond'"),
            DbBackend::MySql => format!("TIMESTAMPADD(MICROSECOND, {micros}, {now})"),
            _ => format!("{now} + {micros}"),
        }
    }

    /// A time from microseconds since 1970; null from 0.
    pub(crate) fn time(&self, micros: &str) -> String {
        match self.backend {
            DbBackend::Postgres => {
                format!(
                    "timestamptz '1970-01-01 00:00:00+00' + NULLIF({micros}, 0) * interval '1 microsecond'"
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
            DbBackend::Postgres => format!("(extract(epoch FROM {column}) * 1000000)::int8"),
            DbBackend::MySql => {
                format!("TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', {column})")
            }
            _ => column.to_owned(),
        }
    }

    /// A small integer column, as the 64-bit integer that is read.
    pub(crate) fn int(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!("{column}::int8"),
            _ => column.to_owned(),
        }
    }

    /// What a fetched row is read from, of a table `m`. The aggregate comes as bytes, so that it can be read even if it is not UTF-8.
    pub(crate) fn columns(&self) -> String {
        let (partition, attempts) = (self.int("m.partition_no"), self.int("m.attempts"));
        let created = self.micros("m.created_at");
        let (bytes, headers): (fn(&str) -> String, _) = match self.backend {
            DbBackend::Postgres => (
                |column| format!("convert_to({column}, 'UTF8')"),
                "m.headers::text",
            ),
            DbBackend::MySql => (str::to_owned, "m.headers"),
            _ => (|column| format!("CAST({column} AS BLOB)"), "m.headers"),
        };
        format!(
            "m.seq, {partition} AS partition_no, {} AS aggregate_type, {} AS aggregate_id, {attempts} AS attempts, m.id, \
             m.sequence, m.event_type, m.event_version, m.subject, m.content_type, m.payload, {headers} AS headers, \
             {created} AS created_micros",
            bytes("m.aggregate_type"),
            bytes("m.aggregate_id"),
        )
    }

    /// All messages, in the order in which they were recorded. For tests: reads the whole table.
    #[cfg(feature = "testing")]
    pub(crate) fn recorded(&self) -> Statement {
        self.sql(format!(
            "SELECT {} FROM {} m ORDER BY m.seq",
            self.columns(),
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

    /// Inserts messages in their order, one row of values each. `numbers` has their sequences, -1 for an unsequenced one. The databases
    /// number the rows of one statement in its order.
    pub(crate) fn insert_rows(&self, messages: &[NewMessage], numbers: &[i64]) -> Statement {
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

    /// Which of these leases the owner still holds, locked until the transaction ends (primary key). One that ran out is not held: nobody may
    /// have taken it yet, but its owner has stopped relying on it.
    pub(crate) fn lock_held_leases(&self, owner: uuid::Uuid, partitions: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS partition_no, epoch FROM {} WHERE owner = ",
            self.int("partition_no"),
            self.leases
        ));
        sql.bind(owner).push(" AND partition_no");
        sql.any(partitions);
        sql.push(&format!(" AND expires_at > {} ORDER BY partition_no", self.now()));
        if self.backend != DbBackend::Sqlite {
            sql.push(" FOR UPDATE");
        }
        sql.statement()
    }

    /// Extends leases that are locked (primary key).
    pub(crate) fn extend_leases(&self, ttl_micros: i64, partitions: &[i64]) -> Statement {
        let mut sql = self.sql(format!("UPDATE {} SET expires_at = ", self.leases));
        let ttl = sql.placeholder(ttl_micros);
        sql.push(&self.now_plus(&ttl)).push(" WHERE partition_no");
        sql.any(partitions);
        sql.statement()
    }

    /// Gives a lease back (primary key). Waits for a settlement that is under way under it.
    pub(crate) fn release(&self, owner: uuid::Uuid, partition: i64, epoch: i64) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET owner = NULL, expires_at = {} WHERE owner = ",
            self.leases,
            self.now()
        ));
        sql.bind(owner)
            .push(" AND partition_no = ")
            .bind(partition)
            .push(" AND epoch = ")
            .bind(epoch);
        sql.statement()
    }

    /// Locks leases against takeover until the transaction ends, and reads their epochs; not of leases that were given back. Rows by
    /// primary key, in its order, so that two settlements cannot deadlock. SQLite needs no lock: the transaction is the only writer.
    pub(crate) fn lock_leases(&self, partitions: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS partition_no, epoch FROM {} WHERE partition_no",
            self.int("partition_no"),
            self.leases
        ));
        sql.any(partitions);
        sql.push(" AND owner IS NOT NULL ORDER BY partition_no");
        sql.push(match self.backend {
            DbBackend::Postgres => " FOR SHARE",
            // Also MariaDB, which knows no FOR SHARE.
            DbBackend::MySql => " LOCK IN SHARE MODE",
            _ => "",
        });
        sql.statement()
    }

    /// Marks pending rows as published.
    pub(crate) fn settle_published(&self, partitions: &[i64], seqs: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET status = 1, published_at = {}",
            self.messages,
            self.now()
        ));
        self.where_pending(&mut sql, partitions, seqs);
        sql.statement()
    }

    /// Adds an attempt to pending rows, with the error; a row that is parked leaves the pending ones.
    pub(crate) fn settle_failed(
        &self,
        partitions: &[i64],
        seqs: &[i64],
        error: &str,
        parked: bool,
    ) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET attempts = attempts + 1, last_error = ",
            self.messages
        ));
        sql.bind(error);
        if parked {
            sql.push(", status = 2");
        }
        self.where_pending(&mut sql, partitions, seqs);
        sql.statement()
    }

    /// Row locks through the pending index (PostgreSQL, SQLite: it is the only one that has `seq` of pending rows; MySQL: the primary key).
    fn where_pending(&self, sql: &mut Sql, partitions: &[i64], seqs: &[i64]) {
        sql.push(" WHERE status = 0 AND seq");
        sql.any(seqs);
        sql.push(" AND ");
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            return postgres::push_partitions(sql, "partition_no", partitions);
        }
        // `+ 0` keeps the two lists from being multiplied to thousands of index ranges.
        sql.push("partition_no + 0").any(partitions);
    }

    /// Which of these rows are parked now, sorted as head rows are locked everywhere.
    pub(crate) fn parked_rows(&self, seqs: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT seq FROM {} WHERE status = 2 AND seq",
            self.messages
        ));
        sql.any(seqs);
        sql.push(" ORDER BY aggregate_type, aggregate_id, seq");
        sql.statement()
    }

    /// Halts the aggregate of a parked row, unless it is halted already. Locks its head row by primary key; creates the row for an
    /// aggregate that has only unsequenced messages.
    pub(crate) fn halt(&self, seq: i64) -> Statement {
        let mut sql = self.sql(format!(
            "INSERT INTO {} {}(aggregate_type, aggregate_id, last_sequence, halted_by) \
             SELECT aggregate_type, aggregate_id, 0, seq FROM {} WHERE status = 2 AND seq = ",
            self.aggregates,
            if self.backend == DbBackend::Postgres {
                "AS head "
            } else {
                ""
            },
            self.messages,
        ));
        sql.bind(seq);
        sql.push(match self.backend {
            DbBackend::Postgres => {
                " ON CONFLICT (aggregate_type, aggregate_id) \
                 DO UPDATE SET halted_by = COALESCE(head.halted_by, EXCLUDED.halted_by)"
            }
            DbBackend::MySql => " ON DUPLICATE KEY UPDATE halted_by = COALESCE(halted_by, VALUES(halted_by))",
            _ => {
                " ON CONFLICT (aggregate_type, aggregate_id) \
                 DO UPDATE SET halted_by = COALESCE(halted_by, excluded.halted_by)"
            }
        });
        sql.statement()
    }

    /// Lets the aggregate go on that this row halts, if it does. Locks the head row, through the index of halted ones.
    pub(crate) fn resume(&self, seq: i64) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET halted_by = NULL WHERE halted_by IS NOT NULL AND halted_by = ",
            self.aggregates
        ));
        sql.bind(seq);
        sql.statement()
    }

    /// A parked row by its id, locked (unique index on `id`).
    pub(crate) fn lock_parked(&self, id: uuid::Uuid) -> Statement {
        let mut sql = self.sql(format!("SELECT seq FROM {} WHERE id = ", self.messages));
        sql.bind(id).push(" AND status = 2");
        if self.backend != DbBackend::Sqlite {
            sql.push(" FOR UPDATE");
        }
        sql.statement()
    }

    /// Makes a parked row pending again; the error stays for people to see.
    pub(crate) fn retry(&self, id: uuid::Uuid) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET status = 0, attempts = 0 WHERE id = ",
            self.messages
        ));
        sql.bind(id).push(" AND status = 2");
        sql.statement()
    }

    /// Parked rows, oldest first, through the index of parked rows.
    pub(crate) fn parked(&self, limit: u32) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT m.id, m.aggregate_type, m.aggregate_id, m.sequence, m.event_type, {} AS attempts, \
             COALESCE(m.last_error, '') AS last_error, \
             CASE WHEN head.halted_by = m.seq THEN {one} ELSE {zero} END AS halts \
             FROM {} m LEFT JOIN {} head \
             ON head.aggregate_type = m.aggregate_type AND head.aggregate_id = m.aggregate_id \
             WHERE m.status = 2 ORDER BY m.seq LIMIT ",
            self.int("m.attempts"),
            self.messages,
            self.aggregates,
            one = self.int("1"),
            zero = self.int("0"),
        ));
        sql.bind(i64::from(limit));
        sql.statement()
    }

    /// Counts through the indexes of pending rows, parked rows and halted aggregates.
    pub(crate) fn backlog(&self) -> Statement {
        let (messages, aggregates) = (&self.messages, &self.aggregates);
        self.sql(format!(
            "SELECT (SELECT count(*) FROM {messages} WHERE status = 0) AS pending, \
             (SELECT count(*) FROM {messages} WHERE status = 2) AS parked, \
             (SELECT count(*) FROM {aggregates} WHERE halted_by IS NOT NULL) AS halted"
        ))
        .statement()
    }
}

/// The keys of an aggregate as values.
pub(crate) fn keys(dialect: &Dialect, aggregate: &Aggregate) -> [Value; 2] {
    [dialect.key(&aggregate.aggregate_type), dialect.key(&aggregate.id)]
}

/// What an operation on a database answers that this build does not support.
pub(crate) fn unsupported(backend: DbBackend) -> DbErr {
    DbErr::Custom(format!(
        "outbox-sea-orm was built without {backend:?}; enable its feature `postgres`, `mysql` or `sqlite`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(backend: DbBackend) -> Dialect {
        Dialect::new(backend, &TableNames::new())
    }

    #[test]
    fn lists_are_padded_where_there_are_no_arrays() {
        let statement = dialect(DbBackend::MySql).parked_rows(&[1, 2, 3]);
        assert_eq!(
            statement.sql,
            "SELECT seq FROM outbox_messages WHERE status = 2 AND seq IN (?, ?, ?, ?) \
             ORDER BY aggregate_type, aggregate_id, seq"
        );
        assert_eq!(statement.values.unwrap().0, [1_i64, 2, 3, 3].map(Value::from));
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn placeholders_are_numbered_on_postgres() {
        let statement = dialect(DbBackend::Postgres).settle_failed(&[7], &[1, 2], "no", true);
        assert_eq!(
            statement.sql,
            "UPDATE outbox_messages SET attempts = attempts + 1, last_error = $1, status = 2 \
             WHERE status = 0 AND seq = ANY($2) AND (($3::int8 >> partition_no) & 1) <> 0"
        );
    }

    #[test]
    fn leases_are_locked_in_share_mode() {
        let sql = |backend| dialect(backend).lock_leases(&[1]).sql;
        assert!(sql(DbBackend::Postgres).ends_with("ORDER BY partition_no FOR SHARE"));
        assert!(sql(DbBackend::MySql).ends_with("ORDER BY partition_no LOCK IN SHARE MODE"));
        assert!(sql(DbBackend::Sqlite).ends_with("ORDER BY partition_no"));
    }
}
