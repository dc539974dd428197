//! Deduplication: each message is applied once per consumer.
//!
//! [`claim`] decides by strategy, in the handler's transaction, whether the message may be applied.
//! [`attempts`] counts failures outside it. With the default strategy both use one row:
//!
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
//! With the other strategies the row only counts attempts. A message that is done, early or running
//! elsewhere leaves no row. A counted attempt ends the row:
//!
//! - Handled in a transaction: handled, by its commit.
//! - Handled without a transaction: handled, after the run and before the acknowledgement.
//! - A duplicate: handled, after the rollback.
//! - Failed: failed, with the attempt and its error.
//! - Attempts used up, or fatal: dead, with the dead letter. If the strategy finds an effect:
//!   handled.
//! - Interrupted, or running elsewhere: failed, still counted.
//! - Returned without a run by a shutdown: failed, the attempt subtracted.
//! - Process crash: unchanged; the next delivery ends the row.
//!
//! So every failed row has an unacknowledged delivery, with one exception. If a process counts a
//! redelivery and is killed while a slow first delivery succeeds, the row stays failed until it
//! expires.
//!
//! Invariant: a row becomes `dead` only after the strategy was checked, in the transaction that
//! passes the message's sequence.

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
