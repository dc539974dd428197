//! The runtime: receives messages and has each handled once.
//!
//! | folder | stage |
//! |---|---|
//! | `receive` | deliveries and dead letters arrive, and stay in memory until their source has an answer |
//! | `schedule` | which message runs next, and how many are in memory |
//! | `run` | a job: attempt, claim, handler, commit, acknowledgement |
//! | `conclude` | failures, duplicates, dead letters, returns |
//! | `health` | how the inbox and its consumers are doing |
//!
//! Invariants:
//!
//! * a message is acknowledged after its effect is committed, never before;
//! * messages of one aggregate are handled one after the other, in the order of the stream (with the strategy `sequence` in that of
//!   their numbers), and one that failed holds back those behind it, in this process;
//! * everything that waits is bounded: deliveries, running handlers, attempts, shutdown;
//! * trouble of database or broker pauses and uses no attempts.
//!
//! Not here: order across processes, which the strategy `sequence` adds.

mod conclude;
mod consumer;
mod dispatcher;
mod health;
mod inbox;
mod lifecycle;
mod message;
mod purge;
mod receive;
mod report;
mod routing;
mod run;
mod schedule;
mod shutdown;
#[cfg(test)]
mod tests;

pub use health::{ConsumerHealth, ConsumerState, InboxHealthCheck};
pub use inbox::{Inbox, InboxError};
pub use report::InboxReport;

#[cfg(feature = "testing")]
pub(crate) use {
    consumer::{Consumer, HandlerServices, Shared, Stop},
    report::Tally,
    run::attempt::handle,
};
