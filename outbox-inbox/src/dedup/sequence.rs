//! Strategy *sequence*: one row per (consumer, aggregate) with the last number that took effect, advanced in the handler's transaction.
//!
//! Exactly one effect per number and in the order of the numbers, in all processes together, for as long as the row exists. A concurrent
//! duplicate waits for the row's lock and then finds out; a number whose turn has not come is told so and waits outside.
//!
//! ```text
//!                      last = 4                      claim, without waiting for gaps
//!   number 4 and less ─────────► stale                (late, if it is one of the missing)
//!   number 5          ─────────► mine, last = 5
//!   number 8          ─────────► early: 5 to 7 are missing
//!                        accept: mine, last = 8, missing 5 to 7
//! ```
//!
//! The good path is one statement (two for the first message of an aggregate, where gaps are normal). Transactions must read what is
//! committed ([`crate::database::Database::begin`]); on MySQL, duplicates of an aggregate's first message can become deadlocks, which
//! the runtime tries again. Absent here: how long to wait, and what becomes of a message that comes late.

use outbox_core::Aggregate;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr};

use super::Claim;
use super::sequences::{SequenceKey, SequenceState};
use super::sql::InboxSql;

/// Most ranges that are remembered as missing per aggregate.
const MISSING_MAX: usize = 64;

/// A message's place in the order of its aggregate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) sql: &'a InboxSql,
    pub(crate) consumer: &'a str,
    pub(crate) aggregate: &'a Aggregate,
    /// Counted from 1.
    pub(crate) sequence: u64,
}

/// What a claim does about numbers that are missing before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// Waits for them.
    Wait,
    /// Goes on without them and remembers them.
    Accept,
    /// Gaps are normal: goes on, and remembers nothing. What comes later than a higher number is stale.
    Ignore,
}

impl Place<'_> {
    fn key(&self) -> SequenceKey<'_> {
        SequenceKey {
            consumer: self.consumer,
            aggregate: self.aggregate,
        }
    }

    /// Takes the turn, if it has come.
    ///
    /// [`Gaps::Accept`] does not jump over a message that is known to fail, nor if too many ranges are missing already: `Early` again.
    pub(crate) async fn claim(&self, tx: &DatabaseTransaction, gaps: Gaps) -> Result<Claim, DbErr> {
        let first = SequenceState {
            last: self.sequence,
            ..SequenceState::default()
        };
        let insert = || self.sql.insert_sequence(tx, self.key(), &first);
        let advance = || {
            self.sql
                .advance(tx, self.key(), self.sequence, gaps == Gaps::Ignore)
        };
        let taken = match (gaps, self.sequence) {
            (Gaps::Ignore, _) => advance().await? || insert().await?,
            (_, 1) => insert().await?,
            _ => advance().await?,
        };
        if taken {
            return Ok(Claim::Mine);
        }
        let mut turn = Claim::Mine;
        self.change(tx, |state| {
            turn = self.turn(state, gaps);
            turn == Claim::Mine
        })
        .await?;
        Ok(turn)
    }

    /// Takes the turn for a dead letter that is tried again. A number that was passed took effect, unless it is one of the missing, or was passed
    /// because it was dead-lettered: `was_dead`, which its inbox row remembers, since sequences do not. It is not missing any more then.
    pub(crate) async fn claim_again(
        &self,
        tx: &DatabaseTransaction,
        was_dead: bool,
        gaps: Gaps,
    ) -> Result<Claim, DbErr> {
        let mut turn = Claim::Mine;
        self.change(tx, |state| {
            turn = if self.sequence > state.last {
                self.turn(state, gaps)
            } else if state.missing.remove(self.sequence) || was_dead {
                Claim::Mine
            } else {
                Claim::Done
            };
            turn == Claim::Mine
        })
        .await?;
        Ok(turn)
    }

    /// Whether the transaction still holds its claim. It does not after an error that the handler swallowed and that made the database roll
    /// back. One look-up by primary key.
    pub(crate) async fn still_holds<C: ConnectionTrait>(&self, tx: &C) -> Result<bool, DbErr> {
        let state = self.sql.sequence_state(tx, self.key(), false).await?;
        Ok(state.is_some_and(|state| self.sequence <= state.last && !state.missing.contains(self.sequence)))
    }

    /// Remembers that this message failed and will be tried again, so that later ones wait for it instead of calling it a gap. The smallest
    /// number counts. A mark that was not renewed for a day is ignored: its message does not come again.
    pub(crate) async fn note_failing<C: ConnectionTrait>(&self, tx: &C) -> Result<(), DbErr> {
        let marked = SequenceState {
            failing: Some(self.sequence),
            ..SequenceState::default()
        };
        // A row may appear between the two statements, so that neither finds what it needs; it is there the second time.
        let _ = self.sql.mark_failing(tx, self.key(), self.sequence).await?
            || self.sql.insert_sequence(tx, self.key(), &marked).await?
            || self.sql.mark_failing(tx, self.key(), self.sequence).await?;
        Ok(())
    }

    /// Goes on without this message; its dead letter is written in the same transaction. Earlier ones that are missing are
    /// remembered as missing; beyond the bound, with numbers between them that are not (a copy of such a one becomes a dead letter
    /// instead of being dropped). Returns false, and changes nothing, if the number took effect; to know that, it waits for a transaction that
    /// holds the sequence.
    pub(crate) async fn pass(&self, tx: &DatabaseTransaction) -> Result<bool, DbErr> {
        let mut passed = true;
        self.change(tx, |state| {
            passed = self.sequence > state.last || state.missing.contains(self.sequence);
            if self.sequence <= state.last {
                return false;
            }
            state.missing.push(state.last + 1..=self.sequence - 1);
            if state.missing.len() > MISSING_MAX {
                state.missing.join_closest();
            }
            self.go_on(state);
            true
        })
        .await?;
        Ok(passed)
    }

    /// Decides whose turn it is, and advances the state if it is ours.
    fn turn(&self, state: &mut SequenceState, gaps: Gaps) -> Claim {
        let expected = state.last + 1;
        if self.sequence < expected {
            let late = gaps != Gaps::Ignore && state.missing.contains(self.sequence);
            return if late { Claim::Late } else { Claim::Done };
        }
        if let Some(failing) = state.failing.filter(|failing| *failing < self.sequence) {
            let expected = if gaps == Gaps::Ignore { failing } else { expected };
            let failing = true;
            return Claim::Early { expected, failing };
        }
        if self.sequence > expected && gaps != Gaps::Ignore {
            if gaps == Gaps::Wait || state.missing.len() >= MISSING_MAX {
                let failing = false;
                return Claim::Early { expected, failing };
            }
            state.missing.push(expected..=self.sequence - 1);
        }
        self.go_on(state);
        Claim::Mine
    }

    fn go_on(&self, state: &mut SequenceState) {
        state.last = self.sequence;
        state.failing = state.failing.filter(|failing| *failing > self.sequence);
    }

    /// Changes the row, or makes it, if `change` says so. Looks without a lock first: most who come here change nothing, and must not wait
    /// for a handler that is running, nor for each other.
    ///
    /// A transaction, because the row is read under a lock and written afterwards: a connection without one gives the lock up in between, and two
    /// processes overwrite each other's state.
    async fn change(
        &self,
        tx: &DatabaseTransaction,
        mut change: impl FnMut(&mut SequenceState) -> bool,
    ) -> Result<(), DbErr> {
        let mut locked = false;
        loop {
            let found = self.sql.sequence_state(tx, self.key(), locked).await?;
            let exists = found.is_some();
            let mut state = found.unwrap_or_default();
            if !change(&mut state) {
                return Ok(());
            }
            if !exists {
                if self.sql.insert_sequence(tx, self.key(), &state).await? {
                    return Ok(());
                }
                // Somebody else made the row meanwhile, and rows are never deleted.
            } else if locked {
                return self.sql.set_sequence(tx, self.key(), &state).await;
            }
            locked = exists;
        }
    }
}

#[cfg(test)]
mod tests;
