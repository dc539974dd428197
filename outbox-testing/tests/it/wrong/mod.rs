//! Wrong implementations, which test the suites. Each has one realistic mistake, and makes one
//! function of the suites fail.

mod dedup_store;
mod log;
mod publisher;
mod store;
mod stream_log;
mod subscriber;
mod writer;

pub(crate) use dedup_store::{DedupStoreMistake, WrongDedupStore};
pub(crate) use log::{LogMistake, WrongLog};
pub(crate) use publisher::{PublisherMistake, WrongPublisher};
pub(crate) use store::{StoreMistake, WrongStore};
pub(crate) use stream_log::{StreamLogMistake, WrongStreamLog};
pub(crate) use subscriber::{SubscriberMistake, WrongSubscriber};
pub(crate) use writer::WriterMistake;
