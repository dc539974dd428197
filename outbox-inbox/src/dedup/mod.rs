//! Deduplication: lets a handler take effect once per message.
//!
//! It answers two separate questions. May the message take effect: [`claim`], by strategy, in the handler's transaction. How often has it failed:
//! [`attempts`], the same for all strategies, outside that transaction. With the default strategy one row answers both:
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
//! With the other strategies the row only counts attempts. Before an attempt is counted, the strategy is asked: `key` and `sequence` in a transaction
//! that is rolled back, an external store by a claim that is released. So a message that is done, early or running elsewhere leaves no row. The
//! process that counts an attempt also ends the row:
//!
//! | how a counted delivery ends | row |
//! |---|---|
//! | handled in a transaction | handled, by its commit |
//! | handled without a transaction (`natural`, `external`) | handled, by a statement after the run and before the acknowledgement |
//! | a duplicate, according to the claim, the store, the handler's constraint or another process | handled, by a statement after the rollback |
//! | failed, panicked, timed out | failed, with the attempt and its error; the message comes again |
//! | attempts used up, or fatal | dead, with the dead letter, unless the strategy knows of an effect: then handled |
//! | interrupted, blocked, runs elsewhere | failed, still counted for this delivery; the message comes again |
//! | sent back unrun by a shutdown | failed, the attempt taken back; the message comes again |
//! | dead-lettered or discarded meanwhile | dead |
//! | its process crashes | unchanged; the next delivery ends the row |
//!
//! So every failed row has a delivery that is not acknowledged, with one exception. A slow first delivery has written no row and is acknowledged;
//! meanwhile another process received the message again, counted an attempt, and was killed. That row stays failed until it expires, and has no
//! effect.
//!
//! Invariant: `handled` is written in the transaction of the effect, or later by a process that knows of the effect. Every other status is written
//! outside that transaction. A row becomes `dead` only after the strategy was asked, in the transaction that passes the message's sequence. A retry
//! under strategy `sequence` uses that to tell a number that was dead-lettered from one that took effect. Not here: running handlers, see
//! [`crate::runtime`].

pub(crate) mod attempts;
mod batch;
pub(crate) mod claim;
pub(crate) mod constraint;
pub(crate) mod key;
pub(crate) mod lock_limit;
mod outcome;
pub(crate) mod sequence;
mod sequences;
pub(crate) mod sql;

pub(crate) use outcome::{Cause, Outcome, Retry};
