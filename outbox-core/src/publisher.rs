//! The way out: the seam to the broker that relays publish through.
//!
//! Implementations: JetStream (`outbox-nats`), the in-memory broker (feature `testing`). Each runs
//! `testing::conformance::publisher`. Absent here: windows, retries and order; they belong to the relay.

use std::collections::HashSet;
use std::error::Error;
use std::future::Future;

use time::OffsetDateTime;

use crate::message::{Message, MessageId};

/// Sends messages to a broker and waits for its confirmation.
///
/// The relay is generic over this trait; it is not meant for `dyn`.
///
/// # Contract
///
/// * **Confirmed.** `Ok` means that the broker has stored the message in the stream it belongs to, now or by an earlier
///   attempt. A reply that proves less is an error of class [`FailureClass::Unknown`].
/// * **Same id.** The message's id is the broker's deduplication id, so publishing again is harmless within its window.
/// * **Concurrent.** Many calls run at once; that is how publishing is pipelined. The relay never has two messages of one
///   aggregate in flight, so implementations owe no order between concurrent calls.
/// * **Bounded.** The future resolves within a time that the implementation documents, also while disconnected.
/// * **Cancellation.** Dropping the future leaves the outcome unknown: the message may be stored later.
/// * **On `Err`.** [`PublishError::class`] says what the relay may do. Only [`FailureClass::Permanent`] proves that sending
///   again is pointless.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes one message and waits for the confirmation.
    fn publish(&self, message: &Message) -> impl Future<Output = Result<Receipt, PublishError>> + Send;

    /// Checks what can be known to fail before the first message: the stream, its retention, the server's version. Returns warnings, each
    /// with what to do.
    ///
    /// # Errors
    ///
    /// [`FailureClass::Configuration`] if it cannot work until somebody acts; another class if it could not be found out now.
    fn preflight(&self) -> impl Future<Output = Result<Vec<String>, PublishError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Gives up what was handed over and is not confirmed, as far as the broker's client can: it closes the connection and opens another.
    /// Called when leases were lost, so that as little as possible arrives after the next owner has begun. Publishing again is allowed at once.
    fn abandon(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What is on the stream, for reconciling the outbox with it.
pub trait StreamLog: Send + Sync + 'static {
    /// The ids of all messages on the stream that were stored at `from` or later, by the broker's clock. Costs memory for each of
    /// them.
    fn message_ids(
        &self,
        from: OffsetDateTime,
    ) -> impl Future<Output = Result<HashSet<MessageId>, PublishError>> + Send;
}

/// The broker's confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The number that the stream gave the message.
    pub stream_sequence: u64,
    /// The broker already had the message: an earlier attempt arrived.
    pub duplicate: bool,
}

/// What a failure allows the relay to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureClass {
    /// The broker is silent or out of reach, before or after the message was sent: it may or may not be stored. Send the same id again;
    /// costs no attempt.
    Unknown,
    /// The broker answered that it cannot take the message now. Back off; costs no attempt.
    Transient,
    /// The broker is full or throttles. Back off; costs no attempt.
    Backpressure,
    /// Stream, permissions or names are set up wrongly. Back off and alarm; costs no attempt.
    Configuration,
    /// This message can never be stored. Dead-letter it at once.
    Permanent,
    /// A refusal we do not know. Back off; costs an attempt, so that it ends some day.
    Unclassified,
}

impl FailureClass {
    /// The class as a short lower-case word, for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Transient => "transient",
            Self::Backpressure => "backpressure",
            Self::Configuration => "configuration",
            Self::Permanent => "permanent",
            Self::Unclassified => "unclassified",
        }
    }
}

/// Why a broker did not confirm a message.
#[derive(Debug, thiserror::Error)]
#[error("{context} ({})", class.as_str())]
pub struct PublishError {
    class: FailureClass,
    context: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl PublishError {
    /// An error of a class; `context` says what happened, in lower case, and what to do where the operator can do something.
    pub fn new(class: FailureClass, context: impl Into<String>) -> Self {
        Self {
            class,
            context: context.into(),
            source: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the relay may do.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        self.class
    }
}
