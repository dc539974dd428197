//! The seam to the broker for operators of consumers: look ahead, place anew.
//!
//! Implementations: JetStream (`outbox-nats`), the in-memory broker (`outbox-testing`). Each runs
//! `outbox_testing::conformance::subscriber` with `consumer_admin_conformance`. Not here: what the inbox remembers of a consumer, and
//! whether its processes run, see `outbox-inbox`.

use std::future::Future;

use crate::subscriber::{StartAt, Subscriber, SubscriberError};

/// Moves the durable state of consumers on the broker.
///
/// Nothing here looks at what an inbox remembers: a message that is delivered again takes effect again, unless the inbox
/// recognises it.
///
/// # Contract
///
/// * **At rest.** The caller makes sure that no process subscribes under the names meanwhile. Otherwise a subscription may end
///   with [`SubscriberError::Gone`], or make the consumer anew in between.
/// * **Repeatable.** A call that failed or was dropped leaves the consumer as it was, as it is to be, or absent; the same call
///   again finishes it. A consumer that is absent meanwhile keeps what it asks for.
pub trait ConsumerAdmin: Subscriber {
    /// Says where a consumer would begin if it were placed there, and how many messages it would be given. Changes nothing.
    ///
    /// * **Missing.** An unknown consumer is [`SubscriberError::Configuration`].
    fn foresee(
        &self,
        consumer: &str,
        start_at: StartAt,
    ) -> impl Future<Output = Result<Foreseen, SubscriberError>> + Send;

    /// Lets an existing consumer begin with the message of this stream sequence, or the next one that it wants. It asks for the
    /// same messages as before, and what was delivered before counts as not delivered.
    ///
    /// * **Missing.** An unknown consumer is [`SubscriberError::Configuration`].
    fn place(
        &self,
        consumer: &str,
        stream_sequence: u64,
    ) -> impl Future<Output = Result<(), SubscriberError>> + Send;
}

/// Where a consumer would begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreseen {
    /// The first stream sequence that it may be given.
    pub stream_sequence: u64,
    /// Messages on the stream that it would be given from there on.
    pub messages: u64,
}
