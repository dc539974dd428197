//! Deliberately wrong implementations: the test of the suites.
//!
//! A promise is only tested if some test fails when it is broken. Real systems have made each of the mistakes here, and for each of them one promise
//! in [`conformance`](super::conformance) fails. The implementations wrap those in memory and change one thing. They are of no other use.

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
