//! Counts the attempts of a message, and dead-letters the message when its last attempt has failed.
//!
//! The row of attempts is written outside the handler's transaction, which would roll it back. A
//! first delivery is counted after it fails, a redelivery before it runs: a handler that kills its
//! process reaches the limit one attempt late.
//!
//! Invariant: one transaction inserts the dead letter and sets the status of the inbox row to
//! `dead`.

use std::time::Duration;

use outbox_core::EventId;
use sea_orm::{DatabaseTransaction, DbErr};

use super::claim::Claimant;
use super::outcome::{Cause, Outcome};
use super::sql::{InboxSql, Key, Status};
use crate::database::{Database, finish};
use crate::dead_letter::{self, NewDeadLetter};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempts<'a> {
    pub(crate) sql: &'a InboxSql,
    pub(crate) database: &'a Database,
    pub(crate) consumer: &'a str,
    pub(crate) event_id: EventId,
    pub(crate) attempts_max: u32,
    pub(crate) run_max: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Add,
    /// Number from [`Attempts::start`]. Later attempts may have raised the number in the row.
    Counted(u32),
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Retry { attempts: u32 },
    Buried { attempts: u32 },
    Done,
}

impl Attempts<'_> {
    fn key(&self) -> Key<'_> {
        Key {
            consumer: self.consumer,
            id: self.event_id.as_uuid(),
        }
    }

    /// Counts an attempt of a redelivery. Call only in tasks that are never aborted.
    pub(crate) async fn start(&self) -> Result<Result<u32, Outcome>, DbErr> {
        let (db, key) = (self.database.pool(), self.key());
        loop {
            let counted = self.sql.count(db, key, self.attempts_max).await?
                || self.sql.insert(db, key, Status::Failed, 1, None).await?;
            return Ok(match self.sql.row(db, key).await? {
                Some(row) if row.status == Status::Handled => Err(Outcome::Duplicate),
                Some(row) if row.status == Status::Dead => Err(Outcome::Buried),
                Some(row) if counted => Ok(row.attempts),
                Some(row) if row.attempts >= self.attempts_max => {
                    // A young row may belong to an attempt that still runs.
                    if self.sql.is_older(db, key, self.run_max).await? {
                        Err(exhausted(row.attempts, row.last_error.as_deref()))
                    } else {
                        Err(Outcome::postponed(self.run_max))
                    }
                }
                _ => continue,
            });
        }
    }

    pub(crate) async fn take_back(&self) -> Result<(), DbErr> {
        self.sql.uncount(self.database.pool(), self.key()).await.map(drop)
    }

    /// Sets the row of an applied message to status `handled`. A crash before this update is
    /// harmless: the next delivery detects the effect again.
    pub(crate) async fn end(&self) -> Result<(), DbErr> {
        self.sql.claim(self.database.pool(), self.key()).await.map(drop)
    }

    /// Records a failed attempt, after its rollback. At the limit of attempts, or if `fatal`, also
    /// writes the dead letter, unless the strategy finds an effect.
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
        // Another process may insert the row between `fail` and `insert`. The second `fail` finds
        // this row.
        let recorded = fail().await?
            || self
                .sql
                .insert(tx, key, Status::Failed, ran, Some(letter.error))
                .await?
            || fail().await?;
        let row = match self.sql.row(tx, key).await? {
            Some(row) if row.status != Status::Failed => return Ok(Failure::Done),
            Some(row) if recorded => row,
            // The result `Done` would acknowledge an unfinished message.
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
            "handler started {attempts} times; the last attempt ended with its process, without a \
             result{last}"
        ),
        cause: Cause::Exhausted { attempts },
    }
}

#[cfg(test)]
mod tests;
