//! Claims a message for a transaction, by strategy, and checks the claim before the commit.
//!
//! Invariant: the record of an effect is written in the effect's transaction, before the effect.

use outbox_core::Message;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr};
use uuid::Uuid;

use super::sequence::{Gaps, Place};
use super::sequences::NumberedEvent;
use super::sql::{InboxSql, Key, Row, Status};
use super::{Outcome, batch};
use crate::handler::Strategy;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub(crate) sql: &'a InboxSql,
    pub(crate) consumer: &'a str,
    pub(crate) message: &'a Message,
    pub(crate) source: &'a str,
    pub(crate) strategy: Strategy,
    pub(crate) id: Uuid,
}

/// Savepoint that proves an open transaction, for databases that accept statements after the
/// transaction is lost.
const ALIVE: &str = "outbox_alive";

impl Claimant<'_> {
    pub(crate) async fn claim(
        &self,
        tx: &DatabaseTransaction,
        counted: bool,
        gaps: Gaps,
    ) -> Result<Outcome, DbErr> {
        if counted {
            let claim = self.claim_counted(tx).await?;
            if claim != Outcome::Claimed || matches!(self.strategy, Strategy::MessageId) {
                return Ok(claim);
            }
        }
        match self.strategy {
            Strategy::MessageId | Strategy::Key(_) => {
                if self.sql.insert(tx, self.key(), Status::Handled, 0, None).await? {
                    return Ok(Outcome::Claimed);
                }
                Ok(over(self.sql.row(tx, self.key()).await?.as_ref()))
            }
            Strategy::Sequence { .. } => {
                let Some(place) = self.place() else {
                    return Err(DbErr::Custom(
                        "strategy `sequence` cannot handle a message without a sequence".to_owned(),
                    ));
                };
                place.claim(tx, gaps).await
            }
            Strategy::Natural | Strategy::Constraint(_) | Strategy::External => {
                if tx.get_database_backend() != DbBackend::Postgres {
                    tx.execute_unprepared(&format!("SAVEPOINT {ALIVE}")).await?;
                }
                Ok(Outcome::Claimed)
            }
        }
    }

    /// Restores the session's lock limit. Call it after an unsuccessful claim, before a handler
    /// runs.
    pub(crate) async fn restore_lock_limit(&self, tx: &DatabaseTransaction) -> Result<(), DbErr> {
        self.sql.lock_limit.restore(tx).await
    }

    async fn claim_counted(&self, tx: &DatabaseTransaction) -> Result<Outcome, DbErr> {
        let key = self.attempts_key();
        if self.sql.claim(tx, key).await? {
            return Ok(Outcome::Claimed);
        }
        Ok(match self.sql.row(tx, key).await? {
            None if self.sql.insert(tx, key, Status::Handled, 1, None).await? => Outcome::Claimed,
            row => over(row.as_ref()),
        })
    }

    pub(crate) async fn claim_again(
        &self,
        tx: &DatabaseTransaction,
        was_dead: bool,
        gaps: Gaps,
    ) -> Result<Outcome, DbErr> {
        match self.strategy {
            Strategy::MessageId => Ok(Outcome::Claimed),
            Strategy::Sequence { .. } => match self.place() {
                None => Ok(Outcome::Claimed),
                Some(place) => place.claim_again(tx, was_dead, gaps).await,
            },
            _ => self.claim(tx, false, gaps).await,
        }
    }

    pub(crate) fn can_tell(&self) -> bool {
        matches!(self.strategy, Strategy::Key(_) | Strategy::Sequence { .. })
    }

    /// Returns false if the handler ignored a database error and the claim is lost.
    ///
    /// PostgreSQL answers the `COMMIT` of an aborted transaction with a rollback that no driver
    /// reports. MySQL has already rolled back the victim of a deadlock.
    pub(crate) async fn still_holds(&self, tx: &DatabaseTransaction) -> Result<bool, DbErr> {
        match self.strategy {
            Strategy::MessageId | Strategy::Key(_) => Ok(self
                .sql
                .row(tx, self.key())
                .await?
                .is_some_and(|row| row.status == Status::Handled)),
            Strategy::Sequence { .. } => match self.place() {
                Some(place) => place.still_holds(tx).await,
                None => Ok(true),
            },
            Strategy::Natural | Strategy::Constraint(_) | Strategy::External => {
                let statement = match tx.get_database_backend() {
                    DbBackend::Postgres => "SELECT 1".to_owned(),
                    _ => format!("RELEASE SAVEPOINT {ALIVE}"),
                };
                tx.execute_unprepared(&statement).await?;
                Ok(true)
            }
        }
    }

    pub(crate) async fn row<C: ConnectionTrait>(&self, db: &C) -> Result<Option<Row>, DbErr> {
        self.sql.row(db, self.key()).await
    }

    pub(crate) async fn note_failing<C: ConnectionTrait>(&self, db: &C) -> Result<(), DbErr> {
        match self.place() {
            Some(place) => place.note_failing(db).await,
            None => Ok(()),
        }
    }

    /// Marks the message as dead-lettered. Returns false if the strategy finds an effect of the
    /// message.
    pub(super) async fn dead_letter(&self, tx: &DatabaseTransaction) -> Result<bool, DbErr> {
        match self.strategy {
            Strategy::Sequence { .. } => match self.place() {
                Some(place) => place.pass(tx).await,
                None => Ok(true),
            },
            // Another copy of the message may be applied at the same time. The retry of this dead
            // letter checks again.
            Strategy::Key(_) => Ok(self.row(tx).await?.is_none()),
            _ => Ok(true),
        }
    }

    pub(crate) fn place(&self) -> Option<Place<'_>> {
        matches!(self.strategy, Strategy::Sequence { .. }).then_some(())?;
        Some(Place {
            sql: self.sql,
            consumer: self.consumer,
            aggregate: &self.message.aggregate,
            source: self.source,
            event: NumberedEvent::of(self.message)?,
        })
    }

    fn key(&self) -> Key<'_> {
        Key {
            consumer: self.consumer,
            id: self.id,
        }
    }

    fn attempts_key(&self) -> Key<'_> {
        Key {
            consumer: self.consumer,
            id: self.message.event_id.as_uuid(),
        }
    }
}

fn over(row: Option<&Row>) -> Outcome {
    match row.map(|row| row.status) {
        Some(Status::Handled) => Outcome::Duplicate,
        Some(Status::Dead) => Outcome::Buried,
        Some(Status::Failed) | None => Outcome::Uncounted,
    }
}

/// Claims several messages; a result of false is a duplicate. Returns `None` if a message has
/// failed before: the caller must claim the messages one by one.
pub(crate) async fn claim_all(
    tx: &DatabaseTransaction,
    claimants: &[Claimant<'_>],
) -> Result<Option<Vec<bool>>, DbErr> {
    let Some(first) = claimants.first() else {
        return Ok(Some(Vec::new()));
    };
    let (sql, consumer) = (first.sql, first.consumer);
    // The ids are locked in ascending order, because different lock orders would deadlock.
    let mut ids: Vec<Uuid> = claimants.iter().map(|claimant| claimant.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut mine = batch::insert_all(sql, tx, consumer, &ids).await?;
    let others: Vec<Uuid> = ids.into_iter().filter(|id| !mine.contains(id)).collect();
    if !others.is_empty() {
        if batch::any_failed(sql, tx, consumer, &others).await? {
            return Ok(None);
        }
        sql.lock_limit.restore(tx).await?;
    }
    Ok(Some(
        claimants
            .iter()
            .map(|claimant| mine.remove(&claimant.id))
            .collect(),
    ))
}
