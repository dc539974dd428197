//! Deduplication: what makes a handler take effect once per message.
//!
//! Two questions, kept apart: may it take effect ([`claim`], by strategy, in the handler's transaction), and how often has it failed ([`attempts`], the same for
//! all strategies, outside of it). With the default strategy both are answered by one row:
//!
//! ```text
//!                 claim (insert)                    the row's states:
//!   no row ───────────────────────────► handled       0 failed   will be tried again
//!     │ failure, or a start that counts    ▲           1 handled  for good
//!     ▼                                    │ claim     2 dead     given up, see the dead letters
//!   failed ────────────────────────────────┘
//!     │ ▲ failure
//!     │ └──┘
//!     └──► dead      attempts used up, or a fatal error
//! ```
//!
//! Invariant: `handled` is only ever written in the transaction of the effect, everything else only outside of it. Absent here:
//! running handlers.

pub(crate) mod attempts;
pub(crate) mod claim;
pub(crate) mod constraint;
pub(crate) mod key;
mod positions;
pub(crate) mod sequence;
pub(crate) mod sql;

#[cfg(test)]
mod test_db;
