//! The runtime: receives messages and has each handled once.
//!
//! One delivery goes *receive → wait for its turn → claim → handle → commit → acknowledge*. Invariants:
//!
//! * a message is acknowledged after its effect is committed, never before;
//! * messages of one aggregate are handled one after the other, in the order in which they are delivered;
//! * everything that waits is bounded: deliveries, running handlers, attempts, shutdown;
//! * trouble of database or broker pauses and uses no attempts.
//!
//! Absent here: the order of a message that failed. It is delivered again after its delay, and later messages of its aggregate do not wait for
//! it.

mod consumer;
mod delivery;
mod handling;
mod inbox;
mod lanes;
mod receive;
mod report;

pub use inbox::{Inbox, InboxError};
pub use report::InboxReport;

#[cfg(feature = "testing")]
pub(crate) use {
    consumer::{Consumer, Shared, Stop},
    handling::Handling,
    report::Tally,
};
