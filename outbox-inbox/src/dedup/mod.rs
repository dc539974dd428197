//! Deduplication: what makes a handler take effect once per message.
//!
//! Two questions, kept apart: may it take effect ([`claim`], by strategy, in the handler's transaction), and how often has it failed ([`attempts`], the same for
//! all strategies, outside of it). With the default strategy both are answered by one row:
//!
//! ```text
//!                 claim (insert)                    the row's states:
//!   no row ───────────────────────────► handled       0 failed   will be tried again
//!     │ failure, or a start that counts    ▲           1 handled  for good
//!     ▼                                    │ claim     2 dead     dead-lettered, see the dead letters
//!   failed ────────────────────────────────┘
//!     │ ▲ failure
//!     │ └──┘
//!     └──► dead      attempts used up, or a fatal error
//! ```
//!
//! With the other strategies the row is only that of the attempts. Before one is counted the strategy is asked (`key` and `sequence` in a transaction that is
//! rolled back, the store by a claim that is released), so what is done, early or running elsewhere leaves no row. Who counts also ends the row:
//!
//! | how a counted delivery ends | row |
//! |---|---|
//! | handled in a transaction | handled, by its commit |
//! | handled without one (`natural`, `external`) | handled, by a statement after the run, before the acknowledgement |
//! | a duplicate: the claim, the store or the handler's constraint says so; another process was first | handled, by a statement after the rollback |
//! | failed, panicked, timed out | failed, with the attempt and its error; the message comes again |
//! | attempts used up, or fatal | dead, with the dead letter, unless the strategy knows of an effect: then handled |
//! | interrupted, blocked, runs elsewhere | failed, still counted for this delivery; the message comes again |
//! | shutdown, given back unrun | failed, the attempt taken back; the message comes again |
//! | dead-lettered or discarded meanwhile | dead |
//! | its process ends | as it was; the next delivery finds out and ends it |
//!
//! So a failed row always has a delivery that nobody has acknowledged. One case is left: a slow first delivery, which has written no row, is acknowledged while
//! the process that got it again has counted it and is killed; that row stays failed until it expires, and means nothing.
//!
//! Invariant: `handled` is written in the transaction of the effect, or later by who knows of the effect; everything else only outside of it. A row becomes
//! `dead` only after the strategy was asked, in the transaction that passes the message's sequence: that is how a retry of strategy `sequence` tells a
//! number that was dead-lettered from one that took effect. Absent here: running handlers.

pub(crate) mod attempts;
pub(crate) mod claim;
pub(crate) mod constraint;
pub(crate) mod key;
pub(crate) mod sequence;
mod sequences;
pub(crate) mod sql;

#[cfg(test)]
mod test_db;

/// Whose a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Ours: it may take effect in this transaction, which holds the claim until it ends.
    Mine,
    /// It took effect before, or a later message of its aggregate did and nobody waits for this one.
    Done,
    /// It was dead-lettered.
    Dead,
    /// It failed before: count the attempt, then claim again.
    CountFirst,
    /// Messages of its aggregate are missing before it, from number `expected` on. `failing`: one of them is known to fail and to be tried again, so this is
    /// no gap.
    Early { expected: u64, failing: bool },
    /// It was not waited for any longer. It must not take effect now.
    Late,
}
