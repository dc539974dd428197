//! The runtime: receives messages and handles each once.
//!
//! - `receive`: deliveries and dead letters, kept in memory until they are acknowledged.
//! - `schedule`: which message runs next, and how many are in memory.
//! - `run`: a job: attempt, claim, handler, commit, acknowledgement.
//! - `conclude`: failures, duplicates, dead letters, returns.
//! - `health`: health of the inbox and its consumers.
//!
//! Invariants:
//!
//! - A message is acknowledged after its effect is committed.
//! - Within a process, messages of one aggregate run one at a time, in stream order (with strategy
//!   `sequence`, in sequence order). A failed message holds back later ones.
//! - Deliveries, handlers, attempts and the shutdown are bounded.
//! - Errors of database or broker use no attempts.

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

pub use health::{ConsumerHealth, ConsumerState, InboxHealthCheck};
pub use inbox::{Inbox, InboxError};
pub use report::InboxReport;

#[cfg(feature = "testing")]
pub(crate) use {
    consumer::{Consumer, HandlerServices, Shared, Stop},
    report::Tally,
    run::attempt::handle,
};
