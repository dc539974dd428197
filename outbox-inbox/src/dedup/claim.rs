//! Claims a message for a transaction, by strategy, and checks the claim before the commit.
//!
//! Invariants: the record of an effect is written in the effect's transaction, before the effect; a transaction that lost its claim is not committed.
//! Not here: failures, see [`super::attempts`]; stores outside the database.

use outbox_core::Message;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr};
use uuid::Uuid;

use super::sequence::{Gaps, Place};
use super::sequences::NumberedEvent;
use super::sql::{InboxSql, Key, Row, Status};
use super::{Outcome, batch};
use crate::handler::Strategy;

/// A message that is about to take effect at a consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub(crate) sql: &'a InboxSql,
    pub(crate) consumer: &'a str,
    pub(crate) message: &'a Message,
    /// The service that recorded the message.
    pub(crate) source: &'a str,
    pub(crate) strategy: Strategy,
    /// Id of the row that records the effect, if the strategy keeps one: the event id, or an id derived from the business key.
    pub(crate) id: Uuid,
}

/// Name of the savepoint that shows whether a transaction is intact, on databases that accept statements outside of one after an error.
const ALIVE: &str = "outbox_alive";

impl Claimant<'_> {
    /// Claims the message for the transaction. `counted`: a row of a failed attempt exists.
    pub(crate) async fn claim(
        &self,
        tx: &DatabaseTransaction,
        counted: bool,
        gaps: Gaps,
    ) -> Result<Outcome, DbErr> {
        if counted {
            // The row of the attempts becomes the row of the effect, or shows that the message is done.
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
                        "a message without a sequence has no place in its aggregate".to_owned(),
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

    /// To be called before a handler runs in a transaction in which a claim was not ours: such a claim may have written no row, and so not restored how long the
    /// session waits for locks.
    pub(crate) async fn restore_lock_limit(&self, tx: &DatabaseTransaction) -> Result<(), DbErr> {
        self.sql.lock_limit.restore(tx).await
    }

    async fn claim_counted(&self, tx: &DatabaseTransaction) -> Result<Outcome, DbErr> {
        let key = self.attempts_key();
        if self.sql.claim(tx, key).await? {
            return Ok(Outcome::Claimed);
        }
        Ok(match self.sql.row(tx, key).await? {
            // The attempt was counted before an outage that lasted until the row expired.
            None if self.sql.insert(tx, key, Status::Handled, 1, None).await? => Outcome::Claimed,
            row => over(row.as_ref()),
        })
    }

    /// Claims the message of a dead letter for the transaction, after the caller has claimed its inbox row. `was_dead`: that row was dead, so the
    /// message did not take effect.
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

    /// Whether the strategy can tell without running the handler that a message took effect.
    pub(crate) fn can_tell(&self) -> bool {
        matches!(self.strategy, Strategy::Key(_) | Strategy::Sequence { .. })
    }

    /// Whether the transaction still holds its claim. It loses the claim through a database error that the handler swallowed. PostgreSQL then answers
    /// `COMMIT` with a rollback that no driver reports, and MySQL has already rolled back the victim of a deadlock; the message would be acknowledged
    /// without its effect. The check is one look-up by primary key. An error of the kind that a broken transaction gives also means no.
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

    /// The row that records the effect, for strategies that keep one.
    pub(crate) async fn row<C: ConnectionTrait>(&self, db: &C) -> Result<Option<Row>, DbErr> {
        self.sql.row(db, self.key()).await
    }

    /// Records that the message will be tried again: later ones of its aggregate wait for it in all processes.
    pub(crate) async fn note_failing<C: ConnectionTrait>(&self, db: &C) -> Result<(), DbErr> {
        match self.place() {
            Some(place) => place.note_failing(db).await,
            None => Ok(()),
        }
    }

    /// Records that the message is dead-lettered, so that later messages need not wait for it. Returns false and changes nothing if the strategy
    /// knows that the message took effect. For [`Strategy::MessageId`] the row that the caller holds has already answered this; strategies without
    /// rows cannot tell.
    pub(super) async fn dead_letter(&self, tx: &DatabaseTransaction) -> Result<bool, DbErr> {
        match self.strategy {
            Strategy::Sequence { .. } => match self.place() {
                Some(place) => place.pass(tx).await,
                None => Ok(true),
            },
            // Another copy may take effect at the same time. The dead letter written here then ends without an effect, because its retry asks again.
            Strategy::Key(_) => Ok(self.row(tx).await?.is_none()),
            _ => Ok(true),
        }
    }

    /// The message's place in its aggregate, if the strategy keeps sequences.
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

/// The answer to a claim that found a row, from the status of that row.
fn over(row: Option<&Row>) -> Outcome {
    match row.map(|row| row.status) {
        Some(Status::Handled) => Outcome::Duplicate,
        Some(Status::Dead) => Outcome::Buried,
        // Failed before, or purged in between: counting the attempt resolves either case.
        Some(Status::Failed) | None => Outcome::Uncounted,
    }
}

/// Claims several messages of strategies that keep rows, in one statement where the database can. None of them may have failed before. Returns for
/// each message whether this transaction has the claim; if not, it took effect before or is a duplicate within the list. `None`: one of them failed
/// before, and the caller must claim them one by one.
pub(crate) async fn claim_all(
    tx: &DatabaseTransaction,
    claimants: &[Claimant<'_>],
) -> Result<Option<Vec<bool>>, DbErr> {
    let Some(first) = claimants.first() else {
        return Ok(Some(Vec::new()));
    };
    let (sql, consumer) = (first.sql, first.consumer);
    // Sorted, because two transactions that lock the same rows in different orders would deadlock.
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
