//! How each strategy takes a message for a transaction, and what it asks before the commit.
//!
//! Invariants: what says that a message took effect is written in the transaction of the effect, before it; a transaction that
//! lost its claim is not committed. Absent here: failures ([`super::attempts`]) and stores outside the database.

use outbox_core::{Message, MessageId};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr};
use uuid::Uuid;

use super::Claim;
use super::sequence::{Gaps, Place};
use super::sql::{InboxSql, Key, Row, Status};
use crate::handler::Strategy;

/// A message that wants to take effect at a consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub(crate) sql: &'a InboxSql,
    pub(crate) consumer: &'a str,
    pub(crate) message: &'a Message,
    pub(crate) strategy: Strategy,
    /// Id of the row that says that it took effect, if the strategy keeps one: of the event, or derived from its business key.
    pub(crate) id: Uuid,
}

/// Statement that only an intact transaction accepts, on databases that go on without one after an error.
const ALIVE: &str = "outbox_alive";

impl Claimant<'_> {
    /// Takes the message for the transaction. `counted`: there is a row of a failed attempt.
    pub(crate) async fn claim(
        &self,
        tx: &DatabaseTransaction,
        counted: bool,
        gaps: Gaps,
    ) -> Result<Claim, DbErr> {
        if counted {
            // The row of its attempts becomes that of its effect, or says that it is over.
            let claim = self.claim_counted(tx).await?;
            if claim != Claim::Mine || matches!(self.strategy, Strategy::MessageId) {
                return Ok(claim);
            }
        }
        match self.strategy {
            Strategy::MessageId | Strategy::Key(_) => {
                if self.sql.insert(tx, self.key(), Status::Handled, 0, None).await? {
                    return Ok(Claim::Mine);
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
                Ok(Claim::Mine)
            }
        }
    }

    async fn claim_counted(&self, tx: &DatabaseTransaction) -> Result<Claim, DbErr> {
        let key = self.attempts_key();
        if self.sql.claim(tx, key).await? {
            return Ok(Claim::Mine);
        }
        Ok(match self.sql.row(tx, key).await? {
            // It was counted before an outage so long that the row has expired meanwhile.
            None if self.sql.insert(tx, key, Status::Handled, 0, None).await? => Claim::Mine,
            row => over(row.as_ref()),
        })
    }

    /// Takes the message of a dead letter for the transaction, after its inbox row was. `was_dead`: that row said so, so it did not take effect.
    pub(crate) async fn claim_again(
        &self,
        tx: &DatabaseTransaction,
        was_dead: bool,
        gaps: Gaps,
    ) -> Result<Claim, DbErr> {
        match self.strategy {
            Strategy::MessageId => Ok(Claim::Mine),
            Strategy::Sequence { .. } => match self.place() {
                None => Ok(Claim::Mine),
                Some(place) => place.claim_again(tx, was_dead, gaps).await,
            },
            _ => self.claim(tx, false, gaps).await,
        }
    }

    /// Whether the strategy can say that a message took effect, without running its handler.
    pub(crate) fn can_tell(&self) -> bool {
        matches!(self.strategy, Strategy::Key(_) | Strategy::Sequence { .. })
    }

    /// Whether the transaction still holds its claim. It does not after an error that the handler swallowed: PostgreSQL then answers
    /// `COMMIT` with a rollback that no driver reports, MySQL has rolled back a deadlock's victim already, and the message would be
    /// acknowledged without its effect. One look-up by primary key; an error of the kind that a broken transaction gives means no.
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

    /// Stores what the handler returned with its row; returns whether the transaction still holds it, as [`Self::still_holds`].
    pub(crate) async fn store(
        &self,
        tx: &DatabaseTransaction,
        result: Option<Vec<u8>>,
        follow_ups: &[MessageId],
    ) -> Result<bool, DbErr> {
        let follow_ups = follow_ups
            .iter()
            .flat_map(|id| id.as_uuid().into_bytes())
            .collect();
        self.sql.store(tx, self.key(), result, follow_ups).await
    }

    /// The row that says that the message took effect, of strategies that keep one.
    pub(crate) async fn row<C: ConnectionTrait>(&self, db: &C) -> Result<Option<Row>, DbErr> {
        self.sql.row(db, self.key()).await
    }

    /// The message failed and will be tried again.
    pub(super) async fn note_failing(&self, tx: &DatabaseTransaction) -> Result<(), DbErr> {
        match self.place() {
            Some(place) => place.note_failing(tx).await,
            None => Ok(()),
        }
    }

    /// The message is dead-lettered: those behind it need not wait for it. False, and nothing has changed: it took effect, as far as the strategy can
    /// tell. [`Strategy::MessageId`] has said so with the row that the caller holds; the strategies without rows cannot tell.
    pub(super) async fn dead_letter(&self, tx: &DatabaseTransaction) -> Result<bool, DbErr> {
        match self.strategy {
            Strategy::Sequence { .. } => match self.place() {
                Some(place) => place.pass(tx).await,
                None => Ok(true),
            },
            // Another copy may take effect beside this; the dead letter that is then written ends without an effect, because it is asked again.
            Strategy::Key(_) => Ok(self.row(tx).await?.is_none()),
            _ => Ok(true),
        }
    }

    /// Its place in its aggregate, if the strategy keeps sequences.
    pub(crate) fn place(&self) -> Option<Place<'_>> {
        matches!(self.strategy, Strategy::Sequence { .. }).then_some(())?;
        Some(Place {
            sql: self.sql,
            consumer: self.consumer,
            aggregate: &self.message.aggregate,
            sequence: self.message.sequence?,
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

/// What the row of a message says that is not ours.
fn over(row: Option<&Row>) -> Claim {
    match row.map(|row| row.status) {
        Some(Status::Handled) => Claim::Done,
        Some(Status::Dead) => Claim::Dead,
        // Failed before; or purged in between, which counting sorts out.
        Some(Status::Failed) | None => Claim::CountFirst,
    }
}

/// Takes several messages of strategies that keep rows, none of which failed before, in one statement where the database can. Returns for each whether it
/// is ours; the others took effect before, or stand twice in the list. `None`: one of them failed before, and they must be taken one by one.
pub(crate) async fn claim_all(
    tx: &DatabaseTransaction,
    claimants: &[Claimant<'_>],
) -> Result<Option<Vec<bool>>, DbErr> {
    let Some(first) = claimants.first() else {
        return Ok(Some(Vec::new()));
    };
    let (sql, consumer) = (first.sql, first.consumer);
    // In one order everywhere: two transactions that take the same rows the other way round would wait for each other.
    let mut ids: Vec<Uuid> = claimants.iter().map(|claimant| claimant.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut mine = sql.insert_all(tx, consumer, &ids).await?;
    let others: Vec<Uuid> = ids.into_iter().filter(|id| !mine.contains(id)).collect();
    if !others.is_empty() && sql.any_failed(tx, consumer, &others).await? {
        return Ok(None);
    }
    Ok(Some(
        claimants
            .iter()
            .map(|claimant| mine.remove(&claimant.id))
            .collect(),
    ))
}
