//! The seam for copies of dead letters, meant for people and programs that watch streams rather than tables.
//!
//! Implementations: a JetStream stream (`outbox-nats`), memory (`outbox-testing`). Invariant: the table of dead
//! letters is the truth. A copy is sent after the transaction that writes the dead letter, and nothing waits for the
//! copy, so a crash in between loses it. Not here: the decision that a message becomes a dead letter, see
//! `outbox-inbox`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use uuid::Uuid;

use crate::publisher::PublishError;
use crate::subscriber::Incoming;

/// Receives copies of dead letters. Meant for `dyn`.
///
/// # Contract
///
/// * **Once, mostly.** A copy with the [`DeadLetterCopy::copy_id`] of an earlier one is dropped, as long as the
///   implementation remembers the earlier one.
/// * **Bounded.** The future resolves within seconds, even while the broker is away.
/// * **On `Err`.** The copy may or may not have been stored. The caller logs the error and goes on.
/// * **Cancellation.** Dropping the future leaves the outcome unknown, as on `Err`.
pub trait DeadLetterSink: fmt::Debug + Send + Sync + 'static {
    /// Sends a copy.
    fn send<'a>(
        &'a self,
        letter: &'a DeadLetterCopy,
    ) -> Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send + 'a>>;
}

/// A copy of a message that a consumer could not handle.
#[derive(Clone, PartialEq)]
pub struct DeadLetterCopy {
    /// The dead letter's key in its table.
    pub id: Uuid,
    /// The consumer that could not handle the message.
    pub consumer: String,
    /// The event type; `None` if the delivery is not a message of an outbox.
    pub event_type: Option<String>,
    /// The reason, at most 1,000 characters.
    pub error: String,
    /// Failed attempts; 0 if no handler ever ran.
    pub attempts: u32,
    /// The delivery.
    pub incoming: Incoming,
}

impl DeadLetterCopy {
    /// The deduplication id of this copy: the same when the copy is sent again, and a new one when the dead letter is
    /// retried and fails again.
    #[must_use]
    pub fn copy_id(&self) -> String {
        format!("{}-{}", self.id, self.attempts)
    }
}

impl fmt::Debug for DeadLetterCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers and payload may hold personal data, so they stay out of logs.
        f.debug_struct("DeadLetterCopy")
            .field("id", &self.id)
            .field("consumer", &self.consumer)
            .field("event_type", &self.event_type)
            .field("error", &self.error)
            .field("attempts", &self.attempts)
            .field("stream_sequence", &self.incoming.stream_sequence)
            .finish_non_exhaustive()
    }
}
