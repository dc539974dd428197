//! The runtime: receives messages and has each handled once.
//!
//! One message goes *receive → wait for its turn in its lane → claim → handle → commit → acknowledge*. Invariants:
//!
//! * a message is acknowledged after its effect is committed, never before;
//! * messages of one aggregate are handled one after the other, in the order of the stream (with the strategy `sequence` in that of
//!   their numbers), and one that failed holds back those behind it, in this process;
//! * everything that waits is bounded: deliveries, running handlers, attempts, shutdown;
//! * trouble of database or broker pauses and uses no attempts.
//!
//! Absent here: order across processes, which the strategy `sequence` adds.

mod attempt;
mod batch;
mod call;
mod consumer;
mod dispatch;
mod duplicate;
mod fail;
mod feed;
mod idle;
mod inbox;
mod item;
mod job;
mod lanes;
mod letters;
mod pass;
mod predecessors;
mod report;
mod returning;
mod room;
mod slots;
mod turn;
mod unknown;
mod wind_up;

pub(crate) use call::Recorded;
pub use inbox::{Inbox, InboxError};
pub use report::InboxReport;

#[cfg(feature = "testing")]
pub(crate) use {
    consumer::{Consumer, Shared, Stop},
    item::Handling,
    report::Tally,
};
