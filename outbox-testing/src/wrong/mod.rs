//! Deliberately wrong implementations, which test the suites.
//!
//! A promise is only tested if some test fails when the promise is broken. Real systems have made each of the mistakes
//! here, and each makes one promise in [`conformance`](super::conformance) fail. Each implementation wraps the
//! in-memory one and changes one thing. They have no other use.

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
