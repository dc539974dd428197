//! Strategy *message id*, the default: one row per (consumer, message id), inserted first, in the handler's transaction.
//!
//! Exactly one effect per message, however often and wherever it is delivered, as long as the row is kept (`expires_at`). A concurrent
//! duplicate waits for the row's lock and then finds out; it never runs.
//!
//! Attempts are counted outside the handler's transaction, or they would roll back with it. The good path pays nothing for that: a first
//! delivery is counted when it has failed, a later one before it runs, so that a handler that takes the process with it reaches its
//! limit as well (after one run more, since the first was not written down). Absent here: when to try again.

use std::time::Duration;

use outbox_core::MessageId;
use sea_orm::{DatabaseTransaction, DbErr};

use super::sql::{InboxSql, Key, Status};
use crate::database::{Database, roll_back};
use crate::dead_letter::{self, Letter};

/// The strategy for one message at one consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByMessageId<'a> {
    pub(crate) sql: &'a InboxSql,
    pub(crate) database: &'a Database,
    pub(crate) consumer: &'a str,
    pub(crate) message_id: MessageId,
    pub(crate) attempts_max: u32,
    /// Longest run of a handler.
    pub(crate) run_max: Duration,
}

/// Whether a message may be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// Yes, and this is the attempt's number.
    Attempt(u32),
    /// It was handled or given up.
    Done,
    /// All attempts are used up, and the last one left no word: the last error that is known, if any.
    Exhausted {
        attempts: u32,
        last_error: Option<String>,
    },
    /// All attempts are used up, and the last one may still be running somewhere.
    Running,
}

/// Whose a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Ours: the transaction holds the row.
    Mine,
    /// It was handled or given up.
    Done,
    /// It failed before: count the attempt, then claim again.
    CountFirst,
}

/// What a failure does to the number of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// It uses one up.
    Add,
    /// [`ByMessageId::start`] has counted it already, and this is its number. Others may have started meanwhile, so the row may say more.
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
    Buried,
    /// Somebody else handled it or gave it up meanwhile.
    Done,
}

impl ByMessageId<'_> {
    fn key(&self) -> Key<'_> {
        Key {
            consumer: self.consumer,
            message_id: self.message_id,
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
                Some(row) if row.status != Status::Failed => Start::Done,
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

    /// Takes the message for the transaction. `counted`: [`Self::start`] has left a row.
    pub(crate) async fn claim(&self, tx: &DatabaseTransaction, counted: bool) -> Result<Claim, DbErr> {
        if counted {
            return Ok(if self.sql.claim(tx, self.key()).await? {
                Claim::Mine
            } else {
                Claim::Done
            });
        }
        if self.sql.insert(tx, self.key(), Status::Handled, 0, None).await? {
            return Ok(Claim::Mine);
        }
        Ok(match self.sql.row(tx, self.key()).await? {
            Some(row) if row.status != Status::Failed => Claim::Done,
            // Failed before; or purged in between, which `start` sorts out.
            _ => Claim::CountFirst,
        })
    }

    /// Whether the transaction still holds its claim. It does not after an error that the handler swallowed: PostgreSQL then answers
    /// `COMMIT` with a rollback that no driver reports, MySQL has rolled back a deadlock's victim already, and the message would be
    /// acknowledged without its effect. One look-up by primary key.
    pub(crate) async fn still_holds(&self, tx: &DatabaseTransaction) -> Result<bool, DbErr> {
        Ok(self
            .sql
            .row(tx, self.key())
            .await?
            .is_some_and(|row| row.status == Status::Handled))
    }

    /// Records a failed attempt after its transaction was rolled back; at the limit, or if `fatal`, the dead letter goes into the same
    /// transaction.
    pub(crate) async fn fail(
        &self,
        count: Count,
        fatal: bool,
        letter: &Letter<'_>,
    ) -> Result<Failure, DbErr> {
        let tx = self.database.begin().await?;
        let outcome = self.fail_in(&tx, count, fatal, letter).await;
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
        letter: &Letter<'_>,
    ) -> Result<Failure, DbErr> {
        let (key, add) = (self.key(), count == Count::Add);
        let ran = u32::from(count != Count::Nothing);
        let recorded = self.sql.fail(tx, key, letter.error, add).await?
            || self
                .sql
                .insert(tx, key, Status::Failed, ran, Some(letter.error))
                .await?;
        let row = self.sql.row(tx, key).await?;
        let Some(row) = row.filter(|row| recorded && row.status == Status::Failed) else {
            return Ok(Failure::Done);
        };
        let attempts = match count {
            Count::Counted(attempt) => attempt,
            Count::Add | Count::Nothing => row.attempts,
        };
        if !fatal && attempts < self.attempts_max {
            return Ok(Failure::Retry { attempts });
        }
        if !self.sql.bury(tx, key, letter.error).await? {
            return Ok(Failure::Done);
        }
        dead_letter::insert(tx, self.sql, &Letter { attempts, ..*letter }).await?;
        Ok(Failure::Buried)
    }
}
