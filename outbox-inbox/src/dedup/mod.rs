//! Deduplication: what makes a handler take effect once per message.
//!
//! One strategy so far, [`message_id`]: a row per (consumer, message), inserted first, in the handler's transaction.
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

pub(crate) mod message_id;
pub(crate) mod sql;
