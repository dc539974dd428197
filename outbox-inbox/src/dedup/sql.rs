//! The inbox's SQL statements, one text per database.
//!
//! On MySQL and MariaDB, SeaORM's `on_conflict_do_nothing` reports a duplicate as inserted, and
//! `INSERT IGNORE` hides truncated values. Neither is used.
//!
//! Invariants: only validated names and literals of this crate become SQL text. Writes of inbox
//! rows use the primary key and wait for locks within the [`LockLimit`].

use std::time::Duration;

use outbox_sea_orm::{Sql, TableNames};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, Statement, Value};
use uuid::Uuid;

use super::lock_limit::LockLimit;
use crate::columns::plus_micros;

pub(crate) const FAILED: i16 = Status::Failed as i16;
pub(super) const HANDLED: i16 = Status::Handled as i16;
pub(crate) const DEAD: i16 = Status::Dead as i16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Failed = 0,
    Handled = 1,
    Dead = 2,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) status: Status,
    pub(crate) attempts: u32,
    pub(crate) last_error: Option<String>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) id: Uuid,
}

#[derive(Debug, Clone)]
pub(crate) struct InboxSql {
    backend: DbBackend,
    messages: String,
    pub(super) dead_letters: String,
    pub(super) sequences: String,
    pauses: String,
    keep_micros: i64,
    pub(super) lock_limit: LockLimit,
}

impl InboxSql {
    pub(crate) fn new(backend: DbBackend, names: &TableNames, keep: Duration) -> Self {
        Self {
            backend,
            messages: names.table(backend, "inbox_messages"),
            dead_letters: names.table(backend, "inbox_dead_letters"),
            sequences: names.table(backend, "inbox_sequences"),
            pauses: names.table(backend, "inbox_pauses"),
            keep_micros: i64::try_from(keep.as_micros()).unwrap_or(i64::MAX),
            lock_limit: LockLimit::default(),
        }
    }

    pub(crate) fn of(db: &DatabaseConnection, names: &TableNames) -> Self {
        Self::new(db.get_database_backend(), names, Duration::ZERO)
    }

    pub(crate) fn limited(self, lock_limit: LockLimit) -> Self {
        Self { lock_limit, ..self }
    }

    pub(crate) fn limited_value(&self, expression: &str) -> String {
        self.lock_limit.set_in(expression)
    }

    pub(crate) fn backend(&self) -> DbBackend {
        self.backend
    }

    pub(crate) fn dead_letters(&self) -> &str {
        &self.dead_letters
    }

    pub(crate) fn messages(&self) -> &str {
        &self.messages
    }

    pub(crate) fn sequences(&self) -> &str {
        &self.sequences
    }

    pub(crate) fn pauses(&self) -> &str {
        &self.pauses
    }

    /// Inserts a row; returns false for an existing row. The insert waits for a concurrent
    /// transaction with the same key.
    pub(crate) async fn insert<C: ConnectionTrait>(
        &self,
        db: &C,
        key: Key<'_>,
        status: Status,
        attempts: u32,
        error: Option<&str>,
    ) -> Result<bool, DbErr> {
        let mut sql = self.sql("INSERT INTO ");
        sql.push(&self.messages)
            .push(" (consumer, id, status, attempts, last_error, processed_at, expires_at) VALUES (");
        sql.bind(self.key(key.consumer)).push(", ").bind(key.id);
        sql.push(", ")
            .bind(status as i16)
            .push(", ")
            .bind(integer(attempts))
            .push(", ")
            .bind(error);
        sql.push(&format!(", {}, ", self.lock_limit.set_in(self.now())));
        self.push_expiry(&mut sql);
        sql.push(")");
        self.insert_limited(db, sql).await
    }

    /// Sets a `failed` row to `handled`. The update waits for a concurrent transaction, and then
    /// compares the committed status.
    pub(crate) async fn claim<C: ConnectionTrait>(&self, db: &C, key: Key<'_>) -> Result<bool, DbErr> {
        self.handle(db, key, FAILED).await
    }

    /// Sets a `dead` row to `handled`.
    pub(crate) async fn revive<C: ConnectionTrait>(&self, db: &C, key: Key<'_>) -> Result<bool, DbErr> {
        self.handle(db, key, DEAD).await
    }

    async fn handle<C: ConnectionTrait>(&self, db: &C, key: Key<'_>, from: i16) -> Result<bool, DbErr> {
        let mut sql = self.update(key, from, |sql| {
            sql.push(&format!("status = {HANDLED}"));
            self.push_times(sql);
        });
        self.lock_limit.push_restored(&mut sql, " RETURNING ");
        changed(db, sql).await
    }

    /// Counts an attempt. Methods from here on do not restore the lock limit, because no handler
    /// runs in their transactions.
    pub(crate) async fn count<C: ConnectionTrait>(
        &self,
        db: &C,
        key: Key<'_>,
        attempts_max: u32,
    ) -> Result<bool, DbErr> {
        let mut sql = self.update(key, FAILED, |sql| {
            sql.push("attempts = attempts + 1");
            self.push_times(sql);
        });
        sql.push(" AND attempts < ").bind(integer(attempts_max));
        changed(db, sql).await
    }

    pub(crate) async fn uncount<C: ConnectionTrait>(&self, db: &C, key: Key<'_>) -> Result<bool, DbErr> {
        let attempts = self.lock_limit.set_in("attempts - 1");
        let mut sql = self.update(key, FAILED, |sql| {
            sql.push(&format!("attempts = {attempts}"));
        });
        sql.push(" AND attempts > 0");
        changed(db, sql).await
    }

    pub(crate) async fn fail<C: ConnectionTrait>(
        &self,
        db: &C,
        key: Key<'_>,
        error: &str,
        count: bool,
    ) -> Result<bool, DbErr> {
        let sql = self.update(key, FAILED, |sql| {
            sql.push(if count { "attempts = attempts + 1, " } else { "" });
            sql.push("last_error = ").bind(error);
            self.push_times(sql);
        });
        changed(db, sql).await
    }

    pub(crate) async fn bury<C: ConnectionTrait>(
        &self,
        db: &C,
        key: Key<'_>,
        error: &str,
    ) -> Result<bool, DbErr> {
        let sql = self.update(key, FAILED, |sql| {
            sql.push(&format!("status = {DEAD}, last_error = ")).bind(error);
            self.push_times(sql);
        });
        changed(db, sql).await
    }

    pub(crate) async fn row<C: ConnectionTrait>(&self, db: &C, key: Key<'_>) -> Result<Option<Row>, DbErr> {
        let mut sql = self.sql("SELECT status, attempts, last_error FROM ");
        sql.push(&self.messages);
        self.push_where(&mut sql, key);
        let Some(row) = db.query_one_raw(sql.statement()).await? else {
            return Ok(None);
        };
        let status = match row.try_get::<i16>("", "status")? {
            FAILED => Status::Failed,
            HANDLED => Status::Handled,
            DEAD => Status::Dead,
            other => {
                return Err(DbErr::Type(format!(
                    "inbox row {key:?} has unknown status {other}"
                )));
            }
        };
        Ok(Some(Row {
            status,
            attempts: u32::try_from(row.try_get::<i32>("", "attempts")?).unwrap_or_default(),
            last_error: row.try_get("", "last_error")?,
        }))
    }

    pub(crate) async fn is_older<C: ConnectionTrait>(
        &self,
        db: &C,
        key: Key<'_>,
        age: Duration,
    ) -> Result<bool, DbErr> {
        let mut sql = self.sql("SELECT status FROM ");
        sql.push(&self.messages);
        self.push_where(&mut sql, key);
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let micros = sql.placeholder(-age);
        sql.push(" AND processed_at < ")
            .push(&plus_micros(self.backend, self.now(), &micros));
        Ok(db.query_one_raw(sql.statement()).await?.is_some())
    }

    #[cfg(feature = "testing")]
    pub(crate) fn handled(&self, consumer: &str) -> Statement {
        let mut sql = self.sql("SELECT id FROM ");
        sql.push(&self.messages)
            .push(" WHERE consumer = ")
            .bind(self.key(consumer));
        sql.push(&format!(" AND status = {HANDLED} ORDER BY processed_at, id"));
        sql.statement()
    }

    pub(crate) fn probe(&self) -> [Statement; 3] {
        let probe = |table: &str, column: &str| {
            self.sql(format!("SELECT {column} FROM {table} WHERE 1 = 0"))
                .statement()
        };
        [
            probe(&self.messages, "consumer, id, status"),
            probe(&self.dead_letters, "id, consumer, source, payload"),
            probe(&self.pauses, "consumer"),
        ]
    }

    pub(crate) async fn insert_once<C: ConnectionTrait>(&self, db: &C, mut sql: Sql) -> Result<bool, DbErr> {
        if self.backend == DbBackend::MySql {
            // With MySQL's driver, a duplicate key makes the insert fail. The number of affected
            // rows does not prove an insert, because the driver counts matched rows.
            return match db.execute_raw(sql.statement()).await {
                Ok(_) => Ok(true),
                Err(error) if is_duplicate_key(&error) => Ok(false),
                Err(error) => Err(error),
            };
        }
        sql.push(" ON CONFLICT DO NOTHING");
        changed(db, sql).await
    }

    pub(super) async fn insert_limited<C: ConnectionTrait>(
        &self,
        db: &C,
        mut sql: Sql,
    ) -> Result<bool, DbErr> {
        if self.backend != DbBackend::Postgres {
            return self.insert_once(db, sql).await;
        }
        sql.push(" ON CONFLICT DO NOTHING");
        self.lock_limit.push_restored(&mut sql, " RETURNING ");
        changed(db, sql).await
    }

    fn update(&self, key: Key<'_>, from: i16, assign: impl FnOnce(&mut Sql)) -> Sql {
        let mut sql = self.sql("UPDATE ");
        sql.push(&self.messages).push(" SET ");
        assign(&mut sql);
        self.push_where(&mut sql, key);
        sql.push(&format!(" AND status = {from}"));
        sql
    }

    fn push_times(&self, sql: &mut Sql) {
        let now = self.lock_limit.set_in(self.now());
        sql.push(&format!(", processed_at = {now}, expires_at = "));
        self.push_expiry(sql);
    }

    fn push_where(&self, sql: &mut Sql, key: Key<'_>) {
        sql.push(" WHERE consumer = ").bind(self.key(key.consumer));
        sql.push(" AND id = ").bind(key.id);
    }

    pub(crate) fn push_expiry(&self, sql: &mut Sql) {
        let keep = sql.placeholder(self.keep_micros);
        sql.push(&plus_micros(self.backend, self.now(), &keep));
    }

    pub(crate) fn now(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => "clock_timestamp()",
            DbBackend::MySql => "UTC_TIMESTAMP(6)",
            _ => "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000",
        }
    }

    /// PostgreSQL evaluates `clock_timestamp()` per row, so no index can serve a comparison with
    /// `clock_timestamp()`.
    pub(crate) fn statement_now(&self) -> &'static str {
        match self.backend {
            DbBackend::Postgres => "statement_timestamp()",
            _ => self.now(),
        }
    }

    /// Binds a name as bytes on MySQL, because MySQL's text types treat `A` and `a` as equal.
    pub(crate) fn key(&self, consumer: &str) -> Value {
        match self.backend {
            DbBackend::MySql => Value::Bytes(Some(consumer.as_bytes().to_vec())),
            _ => Value::String(Some(consumer.to_owned())),
        }
    }

    pub(crate) fn name(&self, name: Option<&str>) -> Value {
        match self.backend {
            DbBackend::MySql => Value::Bytes(name.map(|name| name.as_bytes().to_vec())),
            _ => Value::String(name.map(str::to_owned)),
        }
    }

    pub(crate) fn sql(&self, text: impl Into<String>) -> Sql {
        Sql::new(self.backend, text)
    }
}

pub(crate) fn integer(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(super) async fn changed<C: ConnectionTrait>(db: &C, mut sql: Sql) -> Result<bool, DbErr> {
    Ok(db.execute_raw(sql.statement()).await?.rows_affected() > 0)
}

pub(crate) fn is_duplicate_key(error: &DbErr) -> bool {
    matches!(
        error.sql_err(),
        Some(sea_orm::SqlErr::UniqueConstraintViolation(_))
    )
}
