//! The runtime: receives messages and handles each once.
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
