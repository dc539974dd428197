//! Deliberately wrong implementations, which test the suites.
//!
//! Each wraps the in-memory implementation, changes one thing as a real system might, and makes one
//! function of [`conformance`](super::conformance) fail.

mod dedup_store;
mod log;
mod publisher;
mod store;
mod stream_log;
mod subscriber;
mod writer;

pub use dedup_store::{DedupStoreMistake, WrongDedupStore};
pub use log::{LogMistake, WrongLog, WrongLogReader};
pub use publisher::{PublisherMistake, WrongPublisher};
pub use store::{StoreMistake, WrongStore};
pub use stream_log::{StreamLogMistake, WrongStreamLog};
pub use subscriber::{SubscriberMistake, WrongDelivery, WrongSubscriber, WrongSubscription};
pub use writer::WriterMistake;
