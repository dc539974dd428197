//! Deliberately wrong implementations: the test of the suites.
//!
//! A promise whose violation nothing notices is not tested. Each mistake here is one that real systems made; for each there is a
//! promise in [`conformance`](super::conformance) that fails on it. They wrap the in-memory implementations and change one thing. Absent here:
//! anything to use for another purpose.

mod dedup_store;
mod publisher;
mod store;
mod stream_log;
mod subscriber;
mod writer;

pub use dedup_store::{DedupStoreMistake, WrongDedupStore};
pub use publisher::{PublisherMistake, WrongPublisher};
pub use store::{StoreMistake, WrongStore};
pub use stream_log::{StreamLogMistake, WrongStreamLog};
pub use subscriber::{SubscriberMistake, WrongDelivery, WrongSubscriber, WrongSubscription};
pub use writer::{WriterMistake, WrongWriter};
