//! Counts the attempts at a message, and dead-letters the message when its last attempt has failed.
//!
//! There is one row per (consumer, event) for every strategy, and only after something has gone wrong. It is written outside the handler's
//! transaction, which would roll it back. The good path pays nothing: a first delivery is counted when it has failed, a later delivery before it
//! runs. So a message whose handler kills the process reaches its limit too, one run late because the first run was not recorded. Invariant: the dead
//! letter is written in the transaction that makes the row dead. Not here: when the next attempt is due, see [`crate::runtime`].

use std::time::Duration;

use outbox_core::EventId;
use sea_orm::{DatabaseTransaction, DbErr};

use super::claim::Claimant;
use super::outcome::{Cause, Outcome};
use super::sql::{InboxSql, Key, Status};
use crate::database::{Database, finish};
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

/// How a failure changes the number of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// It adds one.
    Add,
    /// [`Attempts::start`] has already counted the attempt, under this number. The row may hold a higher number if other attempts have started since.
    Counted(u32),
    /// It adds nothing, because no handler ran.
    Nothing,
}

/// The result of recording a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The message may be tried again. `attempts`: failed attempts so far.
    Retry { attempts: u32 },
    /// The message is now a dead letter.
    Buried { attempts: u32 },
    /// Another process has handled or dead-lettered the message meanwhile.
    Done,
}

impl Attempts<'_> {
    fn key(&self) -> Key<'_> {
        Key {
            consumer: self.consumer,
            id: self.event_id.as_uuid(),
        }
    }

    /// Counts an attempt that is about to start, and returns its number. Only repeated deliveries need this.
    ///
    /// Call it only from tasks that are never aborted, as everything here that begins a transaction.
    pub(crate) async fn start(&self) -> Result<Result<u32, Outcome>, DbErr> {
        // Several statements without a transaction: the next delivery can continue from the state after each of them.
        let (db, key) = (self.database.pool(), self.key());
        loop {
            let counted = self.sql.count(db, key, self.attempts_max).await?
                // If there is no row, the first delivery ended before it could write one.
                || self.sql.insert(db, key, Status::Failed, 1, None).await?;
            // A crash here costs this attempt: it is counted and did not run.
            return Ok(match self.sql.row(db, key).await? {
                Some(row) if row.status == Status::Handled => Err(Outcome::Duplicate),
                Some(row) if row.status == Status::Dead => Err(Outcome::Buried),
                Some(row) if counted => Ok(row.attempts),
                Some(row) if row.attempts >= self.attempts_max => {
                    // Deliveries of one message that start at the same moment in several processes are each counted. A young row means that one of
                    // them may still run, so it must not count as ended with its process.
                    if self.sql.is_older(db, key, self.run_max).await? {
                        Err(exhausted(row.attempts, row.last_error.as_deref()))
                    } else {
                        Err(Outcome::postponed(self.run_max))
                    }
                }
                // Another process recorded a failure in between, or the row was purged.
                _ => continue,
            });
        }
    }

    /// Subtracts the attempt that [`Self::start`] counted, because an outage or a shutdown prevented the run.
    pub(crate) async fn take_back(&self) -> Result<(), DbErr> {
        self.sql.uncount(self.database.pool(), self.key()).await.map(drop)
    }

    /// Marks a counted row as handled after its message has taken effect. It is one statement that commits by itself. A crash before it is harmless:
    /// the next delivery finds the effect again.
    pub(crate) async fn end(&self) -> Result<(), DbErr> {
        self.sql.claim(self.database.pool(), self.key()).await.map(drop)
    }

    /// Records a failed attempt after its transaction was rolled back. At the limit, or if `fatal`, it also writes the dead letter in the same
    /// transaction, unless the strategy knows that the message took effect.
    pub(crate) async fn fail(
        &self,
        count: Count,
        fatal: bool,
        letter: &NewDeadLetter<'_>,
        claimant: Option<&Claimant<'_>>,
    ) -> Result<Failure, DbErr> {
        let _turn = self.database.turn().await;
        let tx = self.database.begin().await?;
        let failure = self.fail_in(&tx, count, fatal, letter, claimant).await;
        // A crash before the commit leaves the attempt uncounted, or counted without its error.
        finish(tx, failure).await
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
        // A row may appear between the first `fail` and the `insert`, so that neither of them changes anything. The second `fail` finds it.
        let recorded = fail().await?
            || self
                .sql
                .insert(tx, key, Status::Failed, ran, Some(letter.error))
                .await?
            || fail().await?;
        let row = match self.sql.row(tx, key).await? {
            Some(row) if row.status != Status::Failed => return Ok(Failure::Done),
            Some(row) if recorded => row,
            // The caller tries again. The answer `Done` would acknowledge a message that is not done.
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
        // A message that took effect gets no dead letter, because an operator could retry it.
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

fn exhausted(attempts: u32, last_error: Option<&str>) -> Outcome {
    let last = last_error
        .map(|error| format!("; last error: {error}"))
        .unwrap_or_default();
    Outcome::Failed {
        error: format!(
            "handler was started {attempts} times and left no result the last time: its process ended{last}"
        ),
        cause: Cause::Exhausted { attempts },
    }
}

#[cfg(test)]
mod tests;
