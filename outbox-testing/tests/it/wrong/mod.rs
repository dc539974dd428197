//! Deliberately wrong implementations, which test the suites.
//!
//! Each wraps the in-memory implementation, changes one thing as a real system might, and makes one
//! function of the suites fail. The wrong logs are in [`outbox_testing::wrong`].

mod dedup_store;
mod publisher;
mod store;
mod stream_log;
mod subscriber;
mod writer;

pub(crate) use dedup_store::{DedupStoreMistake, WrongDedupStore};
pub(crate) use publisher::{PublisherMistake, WrongPublisher};
pub(crate) use store::{StoreMistake, WrongStore};
pub(crate) use stream_log::{StreamLogMistake, WrongStreamLog};
pub(crate) use subscriber::{SubscriberMistake, WrongSubscriber};
pub(crate) use writer::WriterMistake;
