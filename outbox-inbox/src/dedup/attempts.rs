//! Counts the attempts at a message, and gives it up at the limit.
//!
//! One row per (consumer, event), whatever the strategy, and only once something has gone wrong. It is written outside the handler's transaction, or
//! it would roll back with it. The good path pays nothing: a first delivery is counted when it has failed, a later one before it
//! runs, so that a handler that takes the process with it reaches its limit as well (after one run more, since the first was not
//! written down). Invariant: the dead letter is written in the transaction that makes the row dead. Absent here: when to try again.

use std::time::Duration;

use outbox_core::EventId;
use sea_orm::{DatabaseTransaction, DbErr};

use super::claim::Claimant;
use super::sql::{InboxSql, Key, Status};
use crate::database::{Database, roll_back};
use crate::dead_letter::{self, NewDeadLetter};

/// The attempts at one event of one consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempts<'a> {
    pub(crate) sql: &'a InboxSql,
    pub(crate) database: &'a Database,
    pub(crate) consumer: &'a str,
    pub(crate) event_id: EventId,
    pub(crate) attempts_max: u32,
    /// Longest run of a handler.
    pub(crate) run_max: Duration,
}

/// Whether a message may be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// Yes, and this is the attempt's number.
    Attempt(u32),
    /// It was handled.
    Handled,
    /// It was dead-lettered.
    Dead,
    /// All attempts are used up, and the last one left no word: the last error that is known, if any.
    Exhausted {
        attempts: u32,
        last_error: Option<String>,
    },
    /// All attempts are used up, and the last one may still be running somewhere.
    Running,
}

/// What a failure does to the number of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// It uses one up.
    Add,
    /// [`Attempts::start`] has counted it already, and this is its number. Others may have started meanwhile, so the row may say more.
    Counted(u32),
    /// No handler ran.
    Nothing,
}

/// What recording a failure came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It may be tried again after so many failed attempts.
    Retry { attempts: u32 },
    /// It is a dead letter now.
    Buried { attempts: u32 },
    /// Somebody else handled or dead-lettered it meanwhile.
    Done,
}

impl Attempts<'_> {
    fn key(&self) -> Key<'_> {
        Key {
            consumer: self.consumer,
            id: self.event_id.as_uuid(),
        }
    }

    /// Counts an attempt that is about to start. Only a delivery that is not the first pays for this.
    ///
    /// Call it from tasks that nobody aborts, as everything here that begins a transaction.
    pub(crate) async fn start(&self) -> Result<Start, DbErr> {
        // Several statements without a transaction: each leaves a state that the next delivery understands.
        let (db, key) = (self.database.pool(), self.key());
        loop {
            let counted = self.sql.count(db, key, self.attempts_max).await?
                // No row, or none that counts: a delivery that ended before it could leave one.
                || self.sql.insert(db, key, Status::Failed, 1, None).await?;
            // A crash here costs this attempt: it was counted and did not run.
            return Ok(match self.sql.row(db, key).await? {
                Some(row) if row.status == Status::Handled => Start::Handled,
                Some(row) if row.status == Status::Dead => Start::Dead,
                Some(row) if counted => Start::Attempt(row.attempts),
                Some(row) if row.attempts >= self.attempts_max => {
                    // Deliveries of one message that start at the same moment in several processes are each counted. None of them must be
                    // taken for one that ended with its process.
                    if self.sql.is_older(db, key, self.run_max).await? {
                        Start::Exhausted {
                            attempts: row.attempts,
                            last_error: row.last_error,
                        }
                    } else {
                        Start::Running
                    }
                }
                // Somebody else's failure came in between, or the row was purged.
                _ => continue,
            });
        }
    }

    /// Takes back what [`Self::start`] counted, for an attempt that an outage or a shutdown prevented.
    pub(crate) async fn take_back(&self) -> Result<(), DbErr> {
        self.sql.uncount(self.database.pool(), self.key()).await.map(drop)
    }

    /// Ends a row that was counted for a message which has taken effect. One statement that commits by itself: what is true of the message stays
    /// true, so a crash before it only leaves the same to be found out again by the next delivery.
    pub(crate) async fn end(&self) -> Result<(), DbErr> {
        self.sql.claim(self.database.pool(), self.key()).await.map(drop)
    }

    /// Records a failed attempt after its transaction was rolled back; at the limit, or if `fatal`, the dead letter goes into the same
    /// transaction, unless the strategy knows that the message took effect.
    pub(crate) async fn fail(
        &self,
        count: Count,
        fatal: bool,
        letter: &NewDeadLetter<'_>,
        claimant: Option<&Claimant<'_>>,
    ) -> Result<Failure, DbErr> {
        let tx = self.database.begin().await?;
        let outcome = self.fail_in(&tx, count, fatal, letter, claimant).await;
        match outcome {
            Ok(failure) => {
                // A crash before this line: the attempt is not counted, or counted without its error.
                tx.commit().await?;
                Ok(failure)
            }
            Err(error) => {
                roll_back(tx).await;
                Err(error)
            }
        }
    }

    async fn fail_in(
        &self,
        tx: &DatabaseTransaction,
        count: Count,
        fatal: bool,
        letter: &NewDeadLetter<'_>,
        claimant: Option<&Claimant<'_>>,
    ) -> Result<Failure, DbErr> {
        let (key, add) = (self.key(), count == Count::Add);
        let ran = u32::from(count != Count::Nothing);
        let fail = || self.sql.fail(tx, key, letter.error, add);
        // A row may appear between the first two, so that neither finds what it needs; it is there the third time.
        let recorded = fail().await?
            || self
                .sql
                .insert(tx, key, Status::Failed, ran, Some(letter.error))
                .await?
            || fail().await?;
        let row = match self.sql.row(tx, key).await? {
            Some(row) if row.status != Status::Failed => return Ok(Failure::Done),
            Some(row) if recorded => row,
            // The caller tries again: calling it done would acknowledge a message that is not.
            _ => return Err(DbErr::RecordNotUpdated),
        };
        let attempts = match count {
            Count::Counted(attempt) => attempt,
            Count::Add | Count::Nothing => row.attempts,
        };
        if !fatal && attempts < self.attempts_max {
            if let Some(claimant) = claimant {
                claimant.note_failing(tx).await?;
            }
            return Ok(Failure::Retry { attempts });
        }
        // A dead letter may be tried again, so there is none of a message that took effect.
        if let Some(claimant) = claimant
            && !claimant.dead_letter(tx).await?
        {
            self.sql.claim(tx, key).await?;
            return Ok(Failure::Done);
        }
        if !self.sql.bury(tx, key, letter.error).await? {
            return Ok(Failure::Done);
        }
        dead_letter::insert_in(tx, self.sql, &NewDeadLetter { attempts, ..*letter }).await?;
        Ok(Failure::Buried { attempts })
    }
}

#[cfg(test)]
mod tests;
