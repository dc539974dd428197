//! Strategy *sequence*: one row per (consumer, aggregate, source) holds the last applied number.
//! The handler's transaction advances it.
//!
//! Invariant: each number is applied once and in ascending order, across all processes. A
//! concurrent duplicate waits for the row lock and then reads the new number.
//!
//! ```text
//!                      last = 4                      claim, without waiting for gaps
//!   number 4 and less ─────────► stale (late if missing, taken if another event had it)
//!   number 5          ─────────► mine, last = 5
//!   number 8          ─────────► early: 5 to 7 are missing
//!                        accept: mine, last = 8, missing 5 to 7
//! ```
//!
//! Transactions must read committed data ([`crate::database::Database::begin`]). On MySQL,
//! duplicates of an aggregate's first message can deadlock; the runtime retries them.

use outbox_core::Aggregate;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr};

use super::Outcome;
use super::sequences::{NumberedEvent, SequenceState};
use super::sql::InboxSql;

/// Maximum number of missing ranges recorded per aggregate.
const MISSING_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) sql: &'a InboxSql,
    pub(crate) consumer: &'a str,
    pub(crate) aggregate: &'a Aggregate,
    pub(crate) source: &'a str,
    pub(crate) event: NumberedEvent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gaps {
    Wait,
    Accept,
    /// Gaps are not recorded. A message with a sequence below the last sequence is stale.
    Ignore,
}

impl Place<'_> {
    fn sequence(&self) -> u64 {
        self.event.sequence
    }

    /// Whether another event was applied under this number, because a producer reuses numbers. A
    /// copy of the applied event has the same id, and was recorded no later than the latest event.
    fn is_taken(&self, state: &SequenceState) -> bool {
        let is_last = self.sequence() == state.last;
        is_last && state.last_event.is_some_and(|id| id != self.event.id)
            || self.sequence() <= state.last && self.event.recorded_at > state.last_recorded_at
    }

    /// Claims the number. [`Gaps::Accept`] still returns `Early` while an earlier message is
    /// failing, or if too many ranges are missing.
    pub(crate) async fn claim(&self, tx: &DatabaseTransaction, gaps: Gaps) -> Result<Outcome, DbErr> {
        let first = SequenceState {
            last: self.sequence(),
            last_event: Some(self.event.id),
            last_recorded_at: self.event.recorded_at,
            ..SequenceState::default()
        };
        let insert = || self.sql.insert_sequence(tx, self, &first);
        let advance = || self.sql.advance(tx, self, gaps == Gaps::Ignore);
        let taken = match (gaps, self.sequence()) {
            (Gaps::Ignore, _) => advance().await? || insert().await?,
            (_, 1) => insert().await?,
            _ => advance().await?,
        };
        if taken {
            return Ok(Outcome::Claimed);
        }
        let mut turn = Outcome::Claimed;
        self.change(tx, |state| {
            turn = self.turn(state, gaps);
            turn == Outcome::Claimed
        })
        .await?;
        Ok(turn)
    }

    pub(crate) async fn claim_again(
        &self,
        tx: &DatabaseTransaction,
        was_dead: bool,
        gaps: Gaps,
    ) -> Result<Outcome, DbErr> {
        let mut turn = Outcome::Claimed;
        self.change(tx, |state| {
            turn = if self.sequence() > state.last {
                self.turn(state, gaps)
            } else if state.missing.remove(self.sequence()) || was_dead {
                Outcome::Claimed
            } else {
                Outcome::Duplicate
            };
            turn == Outcome::Claimed
        })
        .await?;
        Ok(turn)
    }

    pub(crate) async fn still_holds<C: ConnectionTrait>(&self, tx: &C) -> Result<bool, DbErr> {
        let state = self.sql.sequence_state(tx, self, false).await?;
        Ok(state
            .is_some_and(|state| self.sequence() <= state.last && !state.missing.contains(self.sequence())))
    }

    /// Marks the sequence as failing. The row keeps the aggregate's smallest failing sequence.
    pub(crate) async fn note_failing<C: ConnectionTrait>(&self, tx: &C) -> Result<(), DbErr> {
        let marked = SequenceState {
            failing: Some(self.sequence()),
            ..SequenceState::default()
        };
        let _ = self.sql.mark_failing(tx, self).await?
            || self.sql.insert_sequence(tx, self, &marked).await?
            || self.sql.mark_failing(tx, self).await?;
        Ok(())
    }

    /// Stores that the message's sequence is done without an effect. Call `pass` in the transaction
    /// of the dead letter. Returns false if the sequence was applied; the check waits for the row
    /// lock.
    ///
    /// Beyond the maximum number of ranges, two ranges are joined with the sequences between them.
    /// Copies of messages with these sequences become dead letters.
    pub(crate) async fn pass(&self, tx: &DatabaseTransaction) -> Result<bool, DbErr> {
        let mut passed = true;
        self.change(tx, |state| {
            passed = self.sequence() > state.last
                || state.missing.contains(self.sequence())
                || self.is_taken(state);
            if self.sequence() <= state.last {
                return false;
            }
            state.missing.push(state.last + 1..=self.sequence() - 1);
            if state.missing.len() > MISSING_MAX {
                state.missing.join_closest();
            }
            self.go_on(state);
            true
        })
        .await?;
        Ok(passed)
    }

    fn turn(&self, state: &mut SequenceState, gaps: Gaps) -> Outcome {
        let expected = state.last + 1;
        if self.sequence() < expected {
            let late = gaps != Gaps::Ignore && state.missing.contains(self.sequence());
            return match late {
                true => Outcome::Late,
                false if self.is_taken(state) => Outcome::Taken,
                false => Outcome::Duplicate,
            };
        }
        if let Some(failing) = state.failing.filter(|failing| *failing < self.sequence()) {
            let expected = if gaps == Gaps::Ignore { failing } else { expected };
            let failing = true;
            return Outcome::Early { expected, failing };
        }
        if self.sequence() > expected && gaps != Gaps::Ignore {
            if gaps == Gaps::Wait || state.missing.len() >= MISSING_MAX {
                let failing = false;
                return Outcome::Early { expected, failing };
            }
            state.missing.push(expected..=self.sequence() - 1);
        }
        self.go_on(state);
        Outcome::Claimed
    }

    fn go_on(&self, state: &mut SequenceState) {
        state.last = self.sequence();
        state.last_event = Some(self.event.id);
        state.last_recorded_at = state.last_recorded_at.max(self.event.recorded_at);
        state.failing = state.failing.filter(|failing| *failing > self.sequence());
    }

    /// Changes the aggregate's row. The first read takes no lock, because most callers change
    /// nothing. After a locking read the session's [lock limit](super::lock_limit) is restored.
    async fn change(
        &self,
        tx: &DatabaseTransaction,
        mut change: impl FnMut(&mut SequenceState) -> bool,
    ) -> Result<(), DbErr> {
        let mut locked = false;
        loop {
            let found = self.sql.sequence_state(tx, self, locked).await?;
            let exists = found.is_some();
            let mut state = found.unwrap_or_default();
            if !change(&mut state) {
                return match locked {
                    true => self.sql.lock_limit.restore(tx).await,
                    false => Ok(()),
                };
            }
            if !exists {
                if self.sql.insert_sequence(tx, self, &state).await? {
                    return Ok(());
                }
            } else if locked {
                self.sql.set_sequence(tx, self, &state).await?;
                return self.sql.lock_limit.restore(tx).await;
            }
            locked = exists;
        }
    }
}

#[cfg(test)]
mod tests;
