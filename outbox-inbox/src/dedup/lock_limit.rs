//! Limits how long a claim waits on PostgreSQL for a transaction that holds the same row.
//!
//! By default PostgreSQL waits without limit, so a frozen process would block all others. MySQL,
//! MariaDB and SQLite have their own limits (`innodb_lock_wait_timeout`, `busy_timeout`).
//!
//! To save round trips, the statement that writes the inbox row also sets the limit, in an
//! expression that PostgreSQL evaluates before it locks. `RETURNING` restores the session's value,
//! with which handlers run. A statement that writes no row restores nothing: its caller ends the
//! transaction, writes another row, or calls [`LockLimit::restore`].

use std::time::Duration;

use outbox_sea_orm::Sql;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr};

/// Longest lock wait. After this time the message is returned, without using an attempt.
const LOCK_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default)]
pub(crate) struct LockLimit(Option<String>);

impl LockLimit {
    pub(crate) fn instead_of(session: String) -> Self {
        Self(Some(session))
    }

    /// Adds the limit to `expression`, which must belong to the written row.
    pub(super) fn set_in(&self, expression: &str) -> String {
        match self.set() {
            Some(set) => format!("CASE WHEN {set} THEN {expression} END"),
            None => expression.to_owned(),
        }
    }

    /// Adds the limit as a condition, which PostgreSQL evaluates before it locks the row.
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

    pub(super) fn push_restored(&self, sql: &mut Sql, before: &str) {
        if let Some(session) = &self.0 {
            sql.push(before)
                .push("pg_catalog.set_config('lock_timeout', ")
                .bind(session.as_str())
                .push(", true)");
        }
    }

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
