//! The test kit of the outbox: in-memory implementations, faults, checks, and conformance suites.
//!
//! - Services use [`MemoryStore`] and [`MemoryBroker`] with faults (`fail_next`, `lose_acks`, …),
//!   and [`Ledger`] for checks. The crate `outbox` re-exports this crate as `testing`.
//! - Adapters run the [`conformance`] suites.
//!
//! All time is Tokio's clock: a test with `start_paused = true` controls it. Not for production:
//! all data is in memory.

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

mod compile_fail;
mod environment;
mod eventually;
mod forwarding;
mod free_port;

mod memory_broker;
mod memory_dedup_store;
mod memory_log;
mod memory_store;
mod operator;
mod store_methods;

mod faults;
pub mod ledger;

pub mod conformance;

pub use compile_fail::{programs_that_do_not_compile, without_package};
pub use environment::{backend_url, compiler_is_pinned, not_applicable};
pub use eventually::eventually;
pub use free_port::free_port;
pub use ledger::{Ledger, Violation};
pub use memory_broker::{
    LogEntry, MemoryBroker, MemoryDelivery, MemoryPublisher, MemorySubscriber, MemorySubscription, Reached,
    Way,
};
pub use memory_dedup_store::MemoryDedupStore;
pub use memory_log::{MemoryLog, MemoryLogReader};
pub use memory_store::{DuplicateKey, MemoryStore, MemoryTransaction, RecordError, StoredRow};
pub use operator::Operator;
pub use store_methods::store_types;

#[doc(hidden)]
pub use outbox_core as __core;
