//! SQL of operators and of the purge.

use std::time::Duration;

use outbox_core::store::RowKey;
use outbox_core::{Aggregate, MessageId, MessageStatus, Selection};
use sea_orm::{DbBackend, Statement, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use super::ids::IdRange;
use super::key::Key;
use super::{Dialect, TIME_MICROS_MAX};
use crate::sql::Sql;

/// The stored number of a status.
pub(crate) fn status_code(status: MessageStatus) -> i64 {
    match status {
        MessageStatus::Pending => 0,
        MessageStatus::Published => 1,
        MessageStatus::Dead => 2,
        MessageStatus::Waiting => 3,
        MessageStatus::Logged => 4,
    }
}

impl Dialect {
    /// Selected rows as operators see them, in the order of their row ids. Uses the primary key, or the index of a given status; for published rows
    /// the index on ids, whose order is roughly that of time.
    pub(crate) fn list(&self, selection: &Selection, first: Option<Uuid>, limit: i64) -> Statement {
        let mut sql = self.stored();
        self.push_selection(&mut sql, selection, None, first);
        sql.push(" ORDER BY m.row_id LIMIT ").bind(limit);
        sql.statement()
    }

    /// Rows of any status that were recorded within a time span, in the order of their ids (index on `id`). No payload is read, and nothing is locked.
    pub(crate) fn recorded_between(
        &self,
        (from, until): (OffsetDateTime, OffsetDateTime),
        ids: IdRange,
        after: Option<MessageId>,
        limit: i64,
    ) -> Statement {
        let mut sql = self.stored();
        sql.push(" WHERE m.id > ")
            .bind(after.map_or(ids.above, |after| ids.above.max(after.as_uuid())))
            .push(" AND m.id < ")
            .bind(ids.below);
        self.push_time(&mut sql, " AND m.created_at >= ", from);
        self.push_time(&mut sql, " AND m.created_at < ", until);
        sql.push(" ORDER BY m.id LIMIT ").bind(limit);
        sql.statement()
    }

    /// As [`Self::list`], the messages with these ids, in any order (index on `id`).
    pub(crate) fn list_ids(&self, ids: &[Uuid]) -> Statement {
        let mut sql = self.stored();
        sql.push(" WHERE m.id IN ");
        sql.bind_rows([ids.iter().copied().map(Value::from)]);
        sql.statement()
    }

    /// Rows as operators see them, without a condition.
    fn stored(&self) -> Sql {
        self.sql(format!(
            "SELECT {} FROM {} m",
            self.stored_columns(),
            self.messages
        ))
    }

    /// The columns of rows `m` as operators see them.
    pub(super) fn stored_columns(&self) -> String {
        format!(
            "m.row_id, m.id, m.event_id, {} AS aggregate_type, {} AS aggregate_id, m.sequence, m.event_type, \
             {} AS status, {} AS attempts, {} AS failures, m.last_error, {} AS halts, {} AS created_micros, \
             {} AS published_micros",
            self.bytes("m.aggregate_type"),
            self.bytes("m.aggregate_id"),
            self.int("m.status"),
            self.int("m.attempts"),
            self.int("m.failures"),
            self.flag(&format!(
                "(SELECT h.halted_by FROM {} h WHERE h.halted_by = m.row_id LIMIT 1) IS NOT NULL",
                self.blocks
            )),
            self.micros_of_any("m.created_at"),
            self.micros_of_any("m.published_at"),
        )
    }

    /// Row ids, ids and aggregates of selected dead letters, in the order of their row ids (index of dead rows).
    ///
    /// The plan must scan the index in its order and stop at the limit, whatever the statistics; otherwise each batch would read all dead letters that are
    /// left. As in [`Self::scan`], PostgreSQL's planner does not know the limit of the inner query.
    pub(crate) fn select_dead(&self, selection: &Selection, limit: i64) -> Statement {
        self.select_dead_where(selection, "", limit)
    }

    /// As [`Self::select_dead`], those that halt their aggregates. A scalar subquery: one look-up in the index of halted blocks. As a join it could read all
    /// blocks for each dead letter.
    pub(crate) fn select_halting(&self, selection: &Selection, limit: i64) -> Statement {
        let halting = format!(
            " AND (SELECT h.halted_by FROM {} h WHERE h.halted_by = m.row_id LIMIT 1) IS NOT NULL",
            self.blocks
        );
        self.select_dead_where(selection, &halting, limit)
    }

    fn select_dead_where(&self, selection: &Selection, condition: &str, limit: i64) -> Statement {
        let select = format!(
            "SELECT m.row_id, m.id, {} AS aggregate_type, {} AS aggregate_id, {} AS is_sequenced FROM {} m",
            self.bytes("m.aggregate_type"),
            self.bytes("m.aggregate_id"),
            self.flag("m.sequence IS NOT NULL"),
            self.messages,
        );
        let mut sql = self.sql(match self.backend {
            DbBackend::Postgres => format!("SELECT * FROM ({select}"),
            _ => select,
        });
        // The index of dead rows finds them, whatever their ids.
        self.push_selection(&mut sql, selection, Some("m.status = 2"), None);
        sql.push(condition).push(" ORDER BY m.row_id LIMIT ");
        let limit = sql.placeholder(limit);
        sql.push(&match self.backend {
            DbBackend::Postgres => {
                format!("(SELECT {limit}::int8)) selected ORDER BY row_id LIMIT {limit}::int8")
            }
            _ => limit,
        });
        sql.statement()
    }

    /// Row ids and message ids of selected rows that can be replayed, in the order of their row ids and at most `until`. PostgreSQL has no index in this
    /// order: it reads the whole table, or its ids since a time, and sorts. So ask for many rows at a time.
    pub(crate) fn replayable(
        &self,
        selection: &Selection,
        first: Option<Uuid>,
        until: Option<i64>,
        limit: i64,
        has_log: bool,
    ) -> Statement {
        let mut sql = self.sql(format!("SELECT m.row_id, m.id FROM {} m", self.messages));
        let settled = self.settled("IN (1, 2)", has_log);
        self.push_selection(&mut sql, selection, Some(&settled), first);
        if let Some(until) = until {
            sql.push(" AND m.row_id <= ").bind(until);
        }
        sql.push(" ORDER BY m.row_id LIMIT ").bind(limit);
        sql.statement()
    }

    /// Appends the conditions of a selection. `first`: the first id of its time, if ids name times.
    pub(super) fn push_selection(
        &self,
        sql: &mut Sql,
        selection: &Selection,
        condition: Option<&str>,
        first: Option<Uuid>,
    ) {
        sql.push(" WHERE 1 = 1");
        if let Some(condition) = condition {
            sql.push(" AND ").push(condition);
        }
        if let Some(status) = selection.status {
            self.push_status(sql, selection, status);
        }
        if let Some(id) = selection.id {
            sql.push(" AND m.id = ").bind(id.as_uuid());
        }
        for (column, value) in [
            ("m.aggregate_type", &selection.aggregate_type),
            ("m.aggregate_id", &selection.aggregate_id),
        ] {
            if let Some(value) = value {
                sql.push(&format!(" AND {column} = ")).bind(self.key(value));
            }
        }
        if let Some(event_type) = &selection.event_type {
            sql.push(" AND m.event_type = ").bind(event_type.as_str());
        }
        if let Some(first) = first {
            sql.push(" AND m.id >= ").bind(first);
        }
        if let Some(from) = selection.recorded_from {
            self.push_time(sql, " AND m.created_at >= ", from);
        }
        if let Some(until) = selection.recorded_until {
            self.push_time(sql, " AND m.created_at < ", until);
        }
        if let Some(after) = selection.after {
            sql.push(" AND m.row_id > ").bind(after);
        }
    }

    /// The status as a literal, so that the planner can use a partial index. Pending messages of one aggregate are looked for in their partition, in the words of that
    /// index and no other: of 5,000,000 pending rows, PostgreSQL then reads those of one partition out of 64.
    fn push_status(&self, sql: &mut Sql, selection: &Selection, status: MessageStatus) {
        let key = selection
            .aggregate_type
            .as_ref()
            .zip(selection.aggregate_id.as_ref());
        let Some((aggregate_type, id)) = key.filter(|_| status == MessageStatus::Pending) else {
            sql.push(&format!(" AND m.status = {}", status_code(status)));
            return;
        };
        sql.push(match self.backend {
            DbBackend::Postgres => " AND m.status::int4 = 0",
            _ => " AND m.status = 0",
        });
        let partition = Aggregate::new(aggregate_type.as_str(), id.as_str()).partition();
        sql.push(" AND m.partition_no = ").bind(i64::from(partition));
    }

    /// Appends a comparison with a time. Rounds up to microseconds, the unit of the column, which is right for `>=` and `<`.
    pub(crate) fn push_time(&self, sql: &mut Sql, comparison: &str, time: OffsetDateTime) {
        let micros = (time.unix_timestamp_nanos() + 999).div_euclid(1000);
        let micros = i64::try_from(micros)
            .unwrap_or(TIME_MICROS_MAX)
            .clamp(1, TIME_MICROS_MAX);
        let micros = sql.placeholder(micros);
        sql.push(comparison).push(&self.time(&micros));
    }

    /// Makes dead rows pending, or waiting. Keeps their error and number of failures for operators. Index of dead rows (MySQL: primary key).
    pub(crate) fn retry(&self, rows: &[RowKey], waiting: bool) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET status = {}, attempts = 0{} WHERE status = 2 AND ",
            self.messages,
            if waiting { 3 } else { 0 },
            // The row may be an unsequenced one that was delayed.
            if waiting { "" } else { ", available_at = NULL" },
        ));
        self.push_rows_of(&mut sql, rows);
        sql.statement()
    }

    /// Ends the blocks of these halted aggregates (primary key). The blocks must be locked.
    pub(crate) fn lift_halts(&self, keys: &[Key]) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET blocked_until = {}, halted_by = NULL WHERE ",
            self.blocks,
            self.now()
        ));
        self.push_blocks_of(&mut sql, keys, |block| {
            format!(" AND {block}.halted_by IS NOT NULL")
        });
        sql.statement()
    }

    /// Ends the block of an aggregate now (primary key).
    pub(crate) fn resume(&self, aggregate: &Aggregate) -> Statement {
        let now = self.now();
        let mut sql = self.sql(format!(
            "UPDATE {} SET blocked_until = CASE WHEN blocked_until > {now} THEN {now} ELSE blocked_until END WHERE halted_by IS NULL AND ",
            self.blocks
        ));
        self.push_key(&mut sql, &self.blocks, &Key::from(aggregate));
        sql.statement()
    }

    /// Blocked aggregates: halted ones first, then by the end of their block. Sorts all blocks.
    pub(crate) fn blocked(&self, limit: i64) -> Statement {
        let mut sql = self.sql(format!(
            "{} ORDER BY {}, h.blocked_until, h.aggregate_type, h.aggregate_id LIMIT ",
            self.blocks_as_read(),
            self.flag("h.halted_by IS NULL"),
        ));
        sql.bind(limit);
        sql.statement()
    }

    /// Blocks `h` as operators see them, without a condition.
    pub(super) fn blocks_as_read(&self) -> String {
        format!(
            "SELECT {} AS aggregate_type, {} AS aggregate_id, h.halted_by, {} AS due_micros, {} AS now_micros FROM {} h",
            self.bytes("h.aggregate_type"),
            self.bytes("h.aggregate_id"),
            self.micros("h.blocked_until"),
            self.micros(self.statement_now()),
            self.blocks,
        )
    }

    /// The highest row id in the table. PostgreSQL reads the whole table, because it has no index on `row_id`. Its sequence would know, but only tells
    /// roles with rights on it: since PostgreSQL 17, others get null instead of an error.
    pub(crate) fn last_row_id(&self) -> Statement {
        self.sql(format!(
            "SELECT COALESCE(MAX(row_id), 0) AS row_id FROM {}",
            self.messages
        ))
        .statement()
    }

    /// Copies rows under new ids, in the order of their row ids. Look-ups by id.
    pub(crate) fn copy(&self, ids: &[(Uuid, Uuid)], has_log: bool) -> Statement {
        let (messages, settled) = (&self.messages, self.settled("IN (1, 2)", has_log));
        let mut sql = self.sql(format!(
            "INSERT INTO {messages} (id, event_id, partition_no, aggregate_type, aggregate_id, sequence, event_type, \
             event_version, subject, content_type, payload, headers, created_at) \
             SELECT n.new_id, COALESCE(m.event_id, m.id), m.partition_no, m.aggregate_type, m.aggregate_id, m.sequence, \
             m.event_type, m.event_version, m.subject, m.content_type, m.payload, m.headers, m.created_at FROM "
        ));
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            use sea_orm::sea_query::ArrayType;

            sql.push("unnest(")
                .bind(crate::sql::array(
                    ArrayType::Uuid,
                    ids.iter().map(|(old, _)| *old),
                ))
                .push("::uuid[], ")
                .bind(crate::sql::array(
                    ArrayType::Uuid,
                    ids.iter().map(|(_, new)| *new),
                ))
                .push(&format!(
                    "::uuid[]) AS n (old_id, new_id) JOIN {messages} m ON m.id = n.old_id WHERE {settled} \
                     ORDER BY m.row_id"
                ));
            return sql.statement();
        }
        sql.push("(");
        for (n, (old, new)) in ids.iter().enumerate() {
            sql.push(if n == 0 { "SELECT " } else { " UNION ALL SELECT " });
            sql.bind(*old).push(if n == 0 { " AS old_id, " } else { ", " });
            sql.bind(*new).push(if n == 0 { " AS new_id" } else { "" });
        }
        sql.push(&format!(
            ") n JOIN {messages} m ON m.id = n.old_id WHERE {settled} ORDER BY m.row_id"
        ));
        sql.statement()
    }

    /// Published rows that were recorded within a time span, in the order of their ids (index on `id`).
    pub(crate) fn published(
        &self,
        (recorded_from, recorded_until): (OffsetDateTime, OffsetDateTime),
        ids: IdRange,
        after: Option<MessageId>,
        limit: i64,
        has_log: bool,
    ) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} FROM {} m WHERE {} AND m.id > ",
            self.columns(&self.payload()),
            self.messages,
            self.settled("= 1", has_log)
        ));
        sql.bind(after.map_or(ids.above, |after| ids.above.max(after.as_uuid())))
            .push(" AND m.id < ")
            .bind(ids.below);
        self.push_time(&mut sql, " AND m.created_at >= ", recorded_from);
        self.push_time(&mut sql, " AND m.created_at < ", recorded_until);
        sql.push(" ORDER BY m.id LIMIT ").bind(limit);
        sql.statement()
    }

    /// The database's clock.
    pub(crate) fn clock(&self) -> Statement {
        self.sql(format!("SELECT {} AS now_micros", self.micros(self.now())))
            .statement()
    }

    /// Rows with ids below a bound, in the order of their ids, and whether each is old and published (index on `id`).
    pub(crate) fn purgeable(
        &self,
        after: Option<MessageId>,
        below: Uuid,
        older_than: Duration,
        limit: i64,
    ) -> Statement {
        self.purgeable_in(&self.messages, after, below, older_than, limit)
    }

    pub(crate) fn purgeable_in(
        &self,
        table: &str,
        after: Option<MessageId>,
        below: Uuid,
        older_than: Duration,
        limit: i64,
    ) -> Statement {
        let is_old = |sql: &mut Sql, column: &str| {
            let age = sql.placeholder(-super::micros(older_than));
            sql.push(&format!(" AND {column} < {}", self.now_plus(&age)));
        };
        self.looked_at(table, after, below, is_old, limit)
    }

    /// As [`Dialect::purgeable`], by a time instead of an age.
    pub(crate) fn purgeable_before(
        &self,
        after: Option<MessageId>,
        below: Uuid,
        before: OffsetDateTime,
        limit: i64,
    ) -> Statement {
        let is_old = |sql: &mut Sql, column: &str| self.push_time(sql, &format!(" AND {column} < "), before);
        self.looked_at(&self.messages, after, below, is_old, limit)
    }

    fn looked_at(
        &self,
        table: &str,
        after: Option<MessageId>,
        below: Uuid,
        is_old: impl Fn(&mut Sql, &str),
        limit: i64,
    ) -> Statement {
        let mut sql = self.sql("SELECT m.id, CASE WHEN m.status = 1");
        for column in ["m.created_at", "m.published_at"] {
            is_old(&mut sql, column);
        }
        sql.push(&format!(
            " THEN {one} ELSE {zero} END AS is_old FROM {table} m WHERE m.id > ",
            one = self.int("1"),
            zero = self.int("0"),
        ));
        sql.bind(after.map_or(Uuid::nil(), |after| after.as_uuid()))
            .push(" AND m.id < ")
            .bind(below)
            .push(" ORDER BY m.id LIMIT ")
            .bind(limit);
        sql.statement()
    }

    /// Deletes published rows (index on `id`, in its order, so that two purges cannot deadlock). MySQL would scan the table for many rows, and wait for
    /// those of business transactions.
    pub(crate) fn purge(&self, ids: &[Uuid]) -> Statement {
        let mut sql = self.sql(match self.backend {
            DbBackend::MySql => format!(
                "DELETE m FROM {} m FORCE INDEX (outbox_messages_id)",
                self.messages
            ),
            _ => format!("DELETE FROM {}", self.messages),
        });
        sql.push(" WHERE status = 1 AND id");
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            sql.push(" = ANY(")
                .bind(crate::sql::array(
                    sea_orm::sea_query::ArrayType::Uuid,
                    ids.iter().copied(),
                ))
                .push(")");
            return sql.statement();
        }
        sql.push(" IN ");
        sql.bind_rows([ids.iter().copied().map(Value::from)]);
        sql.statement()
    }
}
