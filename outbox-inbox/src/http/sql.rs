//! The SQL of the table of requests, and the claim of a key.
//!
//! Invariant: the row is inserted in the transaction of its effect, so every row visible to other
//! transactions has a response.

use std::time::Duration;

use outbox_sea_orm::{Sql, TableNames};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, Statement, Value};

use super::key::{Claim, Digest};
use super::response::Stored;
use crate::database::{Trouble, trouble};
use crate::dedup::sql::InboxSql;

const TEXT_CHARS_MAX: usize = 255;

/// Maximum attempts to claim a key. An attempt fails if an expired row is deleted between two
/// statements.
const LOOKS_MAX: u32 = 3;

#[derive(Debug)]
pub(crate) enum Claimed {
    Mine,
    Running,
    Done(Stored),
}

#[derive(Debug, Clone)]
pub(crate) struct RequestSql {
    inbox: InboxSql,
    table: String,
}

impl RequestSql {
    pub(crate) fn new(backend: DbBackend, names: &TableNames, retention: Duration) -> Self {
        Self {
            inbox: InboxSql::new(backend, names, retention),
            table: names.table(backend, "inbox_requests"),
        }
    }

    /// Claims a key. On SQLite only one transaction writes at a time, so no key can be in use.
    pub(crate) async fn claim(&self, tx: &DatabaseTransaction, claim: &Claim) -> Result<Claimed, DbErr> {
        match self.is_free(tx, &claim.id).await {
            Ok(true) => {}
            Ok(false) => return Ok(Claimed::Running),
            Err(error) if matches!(trouble(&error), Trouble::Conflict) => return Ok(Claimed::Running),
            Err(error) => return Err(error),
        }
        for _ in 0..LOOKS_MAX {
            match self.insert(tx, claim).await {
                Ok(true) => return Ok(Claimed::Mine),
                Ok(false) => {}
                // Another request with the key holds its row for longer than
                // `innodb_lock_wait_timeout`.
                Err(error) if matches!(trouble(&error), Trouble::Conflict) => return Ok(Claimed::Running),
                Err(error) => return Err(error),
            }
            if let Some(stored) = self.find(tx, &claim.id).await? {
                return Ok(Claimed::Done(stored));
            }
            self.delete_expired(tx, &claim.id).await?;
        }
        Ok(Claimed::Running)
    }

    /// Whether no running request holds the key; never waits. PostgreSQL locks the key until the
    /// transaction ends (an advisory lock on the table's oid and 32 bits of the id). MySQL and
    /// MariaDB lock an existing row. If two transactions find no row, the second waits for the
    /// first at the insert.
    async fn is_free(&self, tx: &DatabaseTransaction, id: &Digest) -> Result<bool, DbErr> {
        match self.inbox.backend() {
            DbBackend::Postgres => {
                let mut sql = self.inbox.sql("SELECT pg_try_advisory_xact_lock(");
                sql.bind(self.table.as_str())
                    .push("::text::regclass::oid::int4, ")
                    .bind(i32::from_be_bytes([id[0], id[1], id[2], id[3]]))
                    .push(") AS free");
                match tx.query_one_raw(sql.statement()).await? {
                    Some(row) => row.try_get("", "free"),
                    None => Ok(false),
                }
            }
            DbBackend::MySql => {
                let mut sql = self.inbox.sql(format!("SELECT 1 FROM {}", self.table));
                push_id(&mut sql, id);
                sql.push(" FOR UPDATE NOWAIT");
                tx.query_one_raw(sql.statement()).await.map(|_| true)
            }
            _ => Ok(true),
        }
    }

    async fn insert(&self, tx: &DatabaseTransaction, claim: &Claim) -> Result<bool, DbErr> {
        let mut sql = self.inbox.sql(format!("INSERT INTO {}", self.table));
        sql.push(
            " (id, tenant, principal, idempotency_key, route, fingerprint, created_at, expires_at) VALUES (",
        );
        sql.bind(claim.id.to_vec()).push(", ");
        for text in [claim.tenant(), claim.principal(), &claim.key, &claim.route] {
            sql.bind(readable(text)).push(", ");
        }
        sql.bind(claim.fingerprint.to_vec())
            .push(&format!(", {}, ", self.inbox.now()));
        self.inbox.push_expiry(&mut sql);
        sql.push(")");
        self.inbox.insert_once(tx, sql).await
    }

    async fn find(&self, tx: &DatabaseTransaction, id: &Digest) -> Result<Option<Stored>, DbErr> {
        let headers = match self.inbox.backend() {
            DbBackend::Postgres => "headers::text",
            _ => "headers",
        };
        let mut sql = self.inbox.sql(format!(
            "SELECT fingerprint, status, {headers} AS headers, body FROM {}",
            self.table
        ));
        push_id(&mut sql, id);
        sql.push(&format!(" AND expires_at > {}", self.inbox.now()));
        let Some(row) = tx.query_one_raw(sql.statement()).await? else {
            return Ok(None);
        };
        let unreadable =
            |what: &str| DbErr::Type(format!("inbox request {id:02x?} has an unreadable {what}"));
        let headers: String = row.try_get("", "headers")?;
        Ok(Some(Stored {
            fingerprint: row
                .try_get::<Vec<u8>>("", "fingerprint")?
                .try_into()
                .map_err(|_| unreadable("fingerprint"))?,
            status: u16::try_from(row.try_get::<i16>("", "status")?).map_err(|_| unreadable("status"))?,
            headers: serde_json::from_str(&headers).map_err(|error| DbErr::Json(error.to_string()))?,
            body: row.try_get("", "body")?,
        }))
    }

    async fn delete_expired(&self, tx: &DatabaseTransaction, id: &Digest) -> Result<(), DbErr> {
        let mut sql = self.inbox.sql(format!("DELETE FROM {}", self.table));
        push_id(&mut sql, id);
        sql.push(&format!(" AND expires_at <= {}", self.inbox.now()));
        tx.execute_raw(sql.statement()).await.map(drop)
    }

    /// Stores the response, or without a response deletes the row. Returns false if the handler
    /// ignored a database error and the row is lost, see `dedup::claim`.
    pub(crate) async fn finish(
        &self,
        tx: &DatabaseTransaction,
        id: &Digest,
        response: Option<Stored>,
    ) -> Result<bool, DbErr> {
        let mut sql = match response {
            Some(response) => {
                let headers = serde_json::to_string(&response.headers)
                    .map_err(|error| DbErr::Json(error.to_string()))?;
                let mut sql = self.inbox.sql(format!("UPDATE {} SET status = ", self.table));
                sql.bind(response.status.cast_signed())
                    .push(", headers = ")
                    .bind(headers);
                sql.push(match self.inbox.backend() {
                    DbBackend::Postgres => "::text::json, body = ",
                    _ => ", body = ",
                });
                sql.bind(response.body);
                sql
            }
            None => self.inbox.sql(format!("DELETE FROM {}", self.table)),
        };
        push_id(&mut sql, id);
        sql.push(" AND status IS NULL");
        Ok(tx.execute_raw(sql.statement()).await?.rows_affected() == 1)
    }

    pub(crate) fn probe(&self) -> Statement {
        self.inbox
            .sql(format!(
                "SELECT id, fingerprint, status FROM {} WHERE 1 = 0",
                self.table
            ))
            .statement()
    }

    /// Returns expired ids, except ids of rows that a request is replacing.
    pub(crate) async fn expired(&self, tx: &DatabaseTransaction, limit: u32) -> Result<Vec<Vec<u8>>, DbErr> {
        let rows = tx.query_all_raw(self.expired_ids(limit)).await?;
        rows.iter().map(|row| row.try_get("", "id")).collect()
    }

    pub(crate) fn expired_ids(&self, limit: u32) -> Statement {
        let (force, lock) = match self.inbox.backend() {
            DbBackend::Postgres => ("", " FOR UPDATE SKIP LOCKED"),
            // Without the index hint, MySQL would lock every row that it sorts.
            DbBackend::MySql => (
                " FORCE INDEX (inbox_requests_expires_at)",
                " FOR UPDATE SKIP LOCKED",
            ),
            _ => ("", ""),
        };
        let mut sql = self.inbox.sql(format!(
            "SELECT id FROM {}{force} WHERE expires_at <= {} ORDER BY expires_at LIMIT ",
            self.table,
            self.inbox.statement_now()
        ));
        sql.bind(i64::from(limit)).push(lock);
        sql.statement()
    }

    pub(crate) async fn delete(&self, tx: &DatabaseTransaction, ids: Vec<Vec<u8>>) -> Result<u64, DbErr> {
        let mut sql = self.inbox.sql(format!("DELETE FROM {} WHERE id IN ", self.table));
        sql.bind_rows([ids.into_iter().map(Value::from)]);
        Ok(tx.execute_raw(sql.statement()).await?.rows_affected())
    }
}

fn push_id(sql: &mut Sql, id: &Digest) {
    sql.push(" WHERE id = ").bind(id.to_vec());
}

/// PostgreSQL's text cannot hold NUL.
fn readable(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(TEXT_CHARS_MAX).collect()
}
