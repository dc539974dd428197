//! Deduplication: each message is applied once per consumer.
//!
//! [`claim`] decides by strategy, in the handler's transaction, whether the message may be applied.
//! [`attempts`] counts failures outside that transaction. With the default strategy, claims and
//! attempts use one row:
//! ```text
//!                 claim (insert)                    the row's states:
//!   no row ───────────────────────────► handled       0 failed   will be tried again
//!     │ failure, or a start that counts    ▲           1 handled  for good
//!     ▼                                    │ claim     2 dead     dead-lettered
//!   failed ────────────────────────────────┘
//!     │ ▲ failure
//!     │ └──┘
//!     └──► dead      attempts used up, or a fatal error
//! ```
//!
//! With the other strategies the row only counts attempts. No row is left if the message was
//! applied before, waits for earlier messages, or runs in another process. A counted attempt ends
//! with a status of its row:
//!
//! - The handler succeeds in a transaction: `handled`, by its commit.
//! - The handler succeeds without a transaction: `handled`, after the run and before the
//!   acknowledgement.
//! - The message is a duplicate: `handled`, after the rollback.
//! - The attempt fails: `failed`, with the attempt and its error.
//! - The attempts are used up, or the error is fatal: `dead`, with the dead letter. If the strategy
//!   finds an effect: `handled`.
//! - The run is interrupted, or the message runs elsewhere: `failed`, still counted.
//! - A shutdown returns the message without a run: `failed`, the attempt subtracted.
//! - The process crashes: the row is unchanged, and the next delivery sets its status.
//!
//! So every `failed` row has an unacknowledged delivery, with one exception. If a process counts a
//! redelivery and is killed while a slow first delivery succeeds, the row stays `failed` until it
//! expires.
//!
//! Invariant: a row becomes `dead` only after the strategy was checked. With strategy `sequence`,
//! the same transaction stores that the sequence is done.

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
