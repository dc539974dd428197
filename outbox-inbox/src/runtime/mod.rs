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
//! Not here: order across processes, which the strategy `sequence` adds.

mod attempt;
mod batch;
mod beginnings;
mod call;
mod capacity;
mod consumer;
mod deliveries;
mod dispatch;
mod duplicate;
mod external;
mod fail;
mod forget;
mod handle;
mod health;
mod idle;
mod inbox;
mod job;
mod lanes;
mod letter;
mod lifecycle;
mod limits;
mod met;
mod pauses;
mod predecessors;
mod ready;
mod receive;
mod refill;
mod report;
mod retries;
mod returning;
mod routed;
mod run;
mod sequencing;
mod shutdown;
mod slots;
mod turns;
mod unknown;
mod unreadable;

pub use health::{ConsumerHealth, ConsumerState, InboxHealthCheck, RunningHandler, SubscriptionState};
pub use inbox::{Inbox, InboxError};
pub use report::InboxReport;

#[cfg(feature = "testing")]
pub(crate) use {
    consumer::{Consumer, Shared, Stop},
    routed::Handling,
};
