//! SQL of deduplication keys.
//!
//! Invariant: a key is inserted in the transaction that inserts its message, and deleted when it is old, or when its aggregate is forgotten.

use std::time::Duration;

use outbox_core::NewMessage;
use sea_orm::{DbBackend, Statement, Value};

use super::{Dialect, micros};

/// The deduplication keys of messages, sorted, so that two transactions with several keys wait for each other instead of deadlocking.
pub(crate) fn dedup_keys(messages: &[NewMessage]) -> Vec<&str> {
    let mut keys: Vec<&str> = messages.iter().filter_map(NewMessage::dedup_key).collect();
    keys.sort_unstable();
    keys
}

impl Dialect {
    /// Inserts keys. A key that exists is a unique violation (primary key), after a wait for the transaction that has inserted it.
    pub(crate) fn insert_keys(&self, keys: &[&str]) -> Statement {
        let mut sql = self.sql("");
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            push_insert_keys(&mut sql, self, keys);
            return sql.statement();
        }
        sql.push(&format!(
            "INSERT INTO {} (dedup_key, recorded_at) VALUES ",
            self.dedup_keys
        ));
        for (n, key) in keys.iter().enumerate() {
            sql.push(if n == 0 { "(" } else { ", (" });
            sql.bind(self.key(key)).push(", ").push(self.now()).push(")");
        }
        sql.statement()
    }

    /// Deletes keys that were recorded longer ago (index on `recorded_at`), oldest first. On PostgreSQL it skips keys that another purge is deleting, so two
    /// purges cannot deadlock. On MySQL run it under READ COMMITTED, because gap locks would block writers.
    pub(crate) fn purge_keys(&self, older_than: Duration, limit: i64) -> Statement {
        let keys = &self.dedup_keys;
        let is_mysql = self.backend == DbBackend::MySql;
        let mut sql = self.sql(if is_mysql {
            format!("DELETE FROM {keys} WHERE recorded_at < ")
        } else {
            format!("DELETE FROM {keys} WHERE dedup_key IN (SELECT k.dedup_key FROM {keys} k WHERE k.recorded_at < ")
        });
        let age = sql.placeholder(-micros(older_than));
        sql.push(&self.statement_now_plus(&age))
            .push(" ORDER BY recorded_at LIMIT ")
            .bind(limit);
        match self.backend {
            DbBackend::Postgres => sql.push(" FOR UPDATE SKIP LOCKED)"),
            DbBackend::MySql => &mut sql,
            _ => sql.push(")"),
        };
        sql.statement()
    }

    /// Deletes these keys (primary key).
    pub(crate) fn delete_keys(&self, keys: &[Value]) -> Statement {
        let mut sql = self.sql(format!("DELETE FROM {} WHERE dedup_key IN ", self.dedup_keys));
        sql.bind_rows([keys.iter().cloned()]);
        sql.statement()
    }
}

/// Appends the insert of deduplication keys.
#[cfg(feature = "postgres")]
pub(crate) fn push_insert_keys(sql: &mut crate::sql::Sql, dialect: &Dialect, keys: &[&str]) {
    sql.push(&format!(
        "INSERT INTO {} (dedup_key) SELECT key FROM pg_catalog.unnest(",
        dialect.dedup_keys
    ))
    .bind(crate::sql::array(
        sea_orm::sea_query::ArrayType::String,
        keys.iter().copied(),
    ))
    .push("::text[]) AS key");
}
