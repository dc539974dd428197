//! How long a claim waits on PostgreSQL for a transaction that holds the same row.
//!
//! PostgreSQL waits for a lock without end, unless `lock_timeout` says otherwise: a frozen process would keep the claims of all others waiting, and
//! their connections and their shutdown with them. MySQL, MariaDB and SQLite have limits of their own (`innodb_lock_wait_timeout`, `busy_timeout`).
//!
//! Two statements around each claim would cost two round trips for each message. So the statement that may wait sets the limit itself, in an
//! expression of the row that it writes, which PostgreSQL evaluates before it looks for the lock; and it restores the session's value in its `RETURNING`,
//! which is evaluated when the row is written. Invariant: a handler runs with the session's value, because it decides for itself how long its
//! statements wait. A statement that writes no row restores nothing: its caller ends the transaction, writes another row, or calls [`LockLimit::restore`].

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
        match &self.0 {
            Some(_) => format!(
                "CASE WHEN set_config('lock_timeout', '{}', true) IS NOT NULL THEN {expression} END",
                LOCK_WAIT.as_millis()
            ),
            None => expression.to_owned(),
        }
    }

    /// Continues a list of what a statement returns.
    pub(super) fn push_restored(&self, sql: &mut Sql, before: &str) {
        if let Some(session) = &self.0 {
            sql.push(before)
                .push("set_config('lock_timeout', ")
                .bind(session.as_str())
                .push(", true)");
        }
    }

    /// Restores the session's value, after a statement that wrote no row.
    pub(super) async fn restore(&self, tx: &DatabaseTransaction) -> Result<(), DbErr> {
        if self.0.is_some() {
            tx.execute_unprepared("SET LOCAL lock_timeout TO DEFAULT").await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Aggregate, Message};
    use outbox_sea_orm::TableNames;
    use sea_orm::{DbBackend, Statement};
    use uuid::Uuid;

    use super::*;
    use crate::dedup::Claim;
    use crate::dedup::claim::{Claimant, claim_all};
    use crate::dedup::sequence::{Gaps, Place};
    use crate::dedup::sequences::NumberedEvent;
    use crate::dedup::sql::InboxSql;
    use crate::dedup::test_db::{Kind, TestDb, message};
    use crate::handler::Strategy;

    async fn lock_timeout(tx: &DatabaseTransaction) -> String {
        let show = Statement::from_string(DbBackend::Postgres, "SHOW lock_timeout");
        let row = tx.query_one_raw(show).await.unwrap().unwrap();
        row.try_get("", "lock_timeout").unwrap()
    }

    /// Each way to a claim, those that need several statements included.
    #[tokio::test]
    async fn a_handler_runs_with_the_limit_of_its_session() {
        let Some(db) = TestDb::open(Kind::Postgres).await else {
            return;
        };
        let limit = db.database.lock_limit();
        let sql = InboxSql::new(DbBackend::Postgres, &TableNames::new(), Duration::from_secs(3600));
        let sql = sql.limited(limit);
        for (gaps, numbers) in [
            (Gaps::Wait, vec![1, 2]),
            (Gaps::Accept, vec![1, 3]),
            (Gaps::AcceptBeginning, vec![4, 5]),
            (Gaps::Ignore, vec![6, 8]),
        ] {
            let aggregate = Aggregate::new("order", format!("{gaps:?}"));
            for sequence in numbers {
                let place = Place {
                    sql: &sql,
                    consumer: "books",
                    aggregate: &aggregate,
                    source: "shop",
                    event: NumberedEvent {
                        sequence,
                        id: Uuid::now_v7(),
                        recorded_at: 0,
                    },
                };
                let tx = db.database.begin().await.unwrap();
                assert_eq!(place.claim(&tx, gaps).await.unwrap(), Claim::Mine);
                assert_eq!(lock_timeout(&tx).await, "0", "{gaps:?}, {sequence}");
                tx.commit().await.unwrap();
            }
        }
        let messages: Vec<Message> = (0..3).map(|_| message()).collect();
        let claimants: Vec<_> = messages
            .iter()
            .map(|message| Claimant {
                sql: &sql,
                consumer: "books",
                message,
                source: "shop",
                strategy: Strategy::MessageId,
                id: message.event_id.as_uuid(),
            })
            .collect();
        // The last of them took effect before.
        for (claimants, mine) in [
            (&claimants[2..], vec![true]),
            (&claimants[..], vec![true, true, false]),
        ] {
            let tx = db.database.begin().await.unwrap();
            assert_eq!(claim_all(&tx, claimants).await.unwrap(), Some(mine));
            assert_eq!(lock_timeout(&tx).await, "0");
            tx.commit().await.unwrap();
        }
        db.close().await;
    }
}
