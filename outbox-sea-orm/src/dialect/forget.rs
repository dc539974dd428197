//! SQL that forgets aggregates.
//!
//! Lock order: head rows, blocks, messages, each in the order of its key. Writers lock head rows first, too.

use std::time::Duration;

use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

use super::key::Key;
use super::{Dialect, micros};
use crate::sql::Sql;

impl Dialect {
    /// Locks the head rows of these aggregates, in the order of their keys (primary key). No new sequenced message of them can be recorded until the
    /// transaction ends.
    pub(crate) fn lock_heads(&self, keys: &[Key]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} FROM {} head WHERE ",
            self.key_columns("head"),
            self.aggregates
        ));
        self.push_keys(&mut sql, "head", keys);
        sql.push(" ORDER BY head.aggregate_type, head.aggregate_id");
        self.push_for_update(&mut sql);
        sql.statement()
    }

    /// The messages of these aggregates, without a lock. Reads the whole table: there is no index by aggregate.
    pub(crate) fn messages_of(&self, keys: &[Key]) -> Statement {
        let mut sql = self.sql(format!("SELECT m.id FROM {} m WHERE ", self.messages));
        self.push_keys(&mut sql, "m", keys);
        sql.push(" ORDER BY m.id");
        sql.statement()
    }

    /// Locks messages by their ids, in that order, and reads what decides about them.
    pub(crate) fn lock_messages_by_id(&self, ids: &[Uuid]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT m.id, {}, {} AS status, m.dedup_key FROM {} m WHERE m.id IN ",
            self.key_columns("m"),
            self.int("m.status"),
            self.messages
        ));
        sql.bind_rows([ids.iter().copied().map(Value::from)]);
        sql.push(" ORDER BY m.id");
        self.push_for_update(&mut sql);
        sql.statement()
    }

    /// Deletes messages that are locked.
    pub(crate) fn delete_messages(&self, ids: &[Uuid]) -> Statement {
        let mut sql = self.sql(format!("DELETE FROM {} WHERE id IN ", self.messages));
        sql.bind_rows([ids.iter().copied().map(Value::from)]);
        sql.statement()
    }

    /// Deletes head rows that are locked (primary key).
    pub(crate) fn delete_heads(&self, keys: &[Key]) -> Statement {
        // MySQL knows no alias here before 8.0.16; MariaDB none at all.
        let table = &self.aggregates;
        let mut sql = self.sql(format!("DELETE FROM {table} WHERE "));
        self.push_keys(&mut sql, table, keys);
        sql.statement()
    }

    /// Aggregates of a type that have recorded nothing for so long, in the order of their ids (primary key), behind `after`. Without a lock. Reads the
    /// type's head rows up to the last one that it returns.
    pub(crate) fn idle_heads(
        &self,
        aggregate_type: &str,
        idle_for: Duration,
        after: Option<&Key>,
        limit: i64,
    ) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} FROM {} head WHERE head.aggregate_type = ",
            self.key_columns("head"),
            self.aggregates
        ));
        sql.bind(self.key(aggregate_type));
        self.push_idle(&mut sql, idle_for);
        if let Some(after) = after {
            let [_, id] = self.bind_key(&mut sql, after);
            sql.push(" AND head.aggregate_id > ").push(&id);
        }
        sql.push(" ORDER BY head.aggregate_id LIMIT ").bind(limit);
        sql.statement()
    }

    /// Locks those of these head rows that are still idle, in the order of their keys (primary key).
    pub(crate) fn lock_idle_heads(&self, keys: &[Key], idle_for: Duration) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} FROM {} head WHERE ",
            self.key_columns("head"),
            self.aggregates
        ));
        self.push_keys(&mut sql, "head", keys);
        self.push_idle(&mut sql, idle_for);
        sql.push(" ORDER BY head.aggregate_type, head.aggregate_id");
        self.push_for_update(&mut sql);
        sql.statement()
    }

    /// Those of these aggregates that have a message which is pending, waiting or dead, without a lock. Reads the index of each of these statuses.
    pub(crate) fn unpublished_of(&self, keys: &[Key]) -> Statement {
        let mut sql = self.sql("");
        for (n, status) in [0, 2, 3].into_iter().enumerate() {
            sql.push(if n == 0 { "" } else { " UNION " }).push(&format!(
                "SELECT {} FROM {} m WHERE m.status = {status} AND ",
                self.key_columns("m"),
                self.messages
            ));
            self.push_keys(&mut sql, "m", keys);
        }
        sql.statement()
    }

    /// Type and id of an aggregate, as bytes.
    fn key_columns(&self, table: &str) -> String {
        let column = |name| format!("{} AS {name}", self.bytes(&format!("{table}.{name}")));
        format!("{}, {}", column("aggregate_type"), column("aggregate_id"))
    }

    fn push_idle(&self, sql: &mut Sql, idle_for: Duration) {
        let age = sql.placeholder(-micros(idle_for));
        sql.push(" AND head.recorded_at <= ").push(&self.now_plus(&age));
    }

    /// SQLite has one writer at a time.
    fn push_for_update(&self, sql: &mut Sql) {
        if self.backend != DbBackend::Sqlite {
            sql.push(" FOR UPDATE");
        }
    }
}
