//! How long a claim waits on PostgreSQL for a transaction that holds the same row.
//!
//! PostgreSQL waits for a lock without end, unless `lock_timeout` says otherwise: a frozen process would keep the claims of all others waiting, and
//! their connections and their shutdown with them. MySQL, MariaDB and SQLite have limits of their own (`innodb_lock_wait_timeout`, `busy_timeout`).
//!
//! Two statements around each claim would cost two round trips for each message. So the statement that may wait sets the limit itself, in an
//! expression of the row that it writes, which PostgreSQL evaluates before it looks for the lock; and where a handler may follow, it restores the session's
//! value in its `RETURNING`, which is evaluated when the row is written. Invariant: a handler runs with the session's value, because it decides for itself how
//! long its statements wait. A statement that writes no row restores nothing: its caller ends the transaction, writes another row, or calls
//! [`LockLimit::restore`]. The session's value is read once, when the consumer starts.

use std::time::Duration;

use outbox_sea_orm::Sql;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr};

/// Longest wait of a claim for a lock. Afterwards the message goes back, without an attempt used.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// `lock_timeout` of the session, if claims are limited. The default limits nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct LockLimit(Option<String>);

impl LockLimit {
    /// For PostgreSQL. `session`: `lock_timeout` as the pool's sessions begin with it.
    pub(crate) fn instead_of(session: String) -> Self {
        Self(Some(session))
    }

    /// The expression, in a statement that waits no longer than the limit. It must belong to the row that is written.
    pub(super) fn set_in(&self, expression: &str) -> String {
        match self.set() {
            Some(set) => format!("CASE WHEN {set} THEN {expression} END"),
            None => expression.to_owned(),
        }
    }

    /// Continues the conditions of a query that locks what it finds: they are evaluated before the lock is asked for.
    pub(super) fn push_set(&self, sql: &mut Sql) {
        if let Some(set) = self.set() {
            sql.push(" AND ").push(&set);
        }
    }

    fn set(&self) -> Option<String> {
        let wait = LOCK_WAIT.as_millis();
        let set = || format!("pg_catalog.set_config('lock_timeout', '{wait}', true) IS NOT NULL");
        self.0.is_some().then(set)
    }

    /// Continues a list of what a statement returns.
    pub(super) fn push_restored(&self, sql: &mut Sql, before: &str) {
        if let Some(session) = &self.0 {
            sql.push(before)
                .push("pg_catalog.set_config('lock_timeout', ")
                .bind(session.as_str())
                .push(", true)");
        }
    }

    /// Restores the session's value, after a statement that wrote no row.
    pub(super) async fn restore(&self, tx: &DatabaseTransaction) -> Result<(), DbErr> {
        if self.0.is_some() {
            let mut sql = Sql::new(tx.get_database_backend(), "SELECT ");
            self.push_restored(&mut sql, "");
            tx.execute_raw(sql.statement()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
