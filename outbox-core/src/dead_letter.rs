//! The seam that takes copies of dead letters, for people and programs that look at streams and not at tables.
//!
//! Implementations: a JetStream stream (`outbox-nats`), memory (feature `testing`). Invariant: the table of dead letters is the truth. A copy is sent after the
//! transaction that writes the dead letter, so a crash in between loses it, and nothing waits for one. Not here: deciding what becomes a dead letter, which
//! belongs to `outbox-inbox`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use uuid::Uuid;

use crate::publisher::PublishError;
use crate::subscriber::Incoming;

/// Takes copies of dead letters. Meant for `dyn`.
///
/// # Contract
///
/// * **Once, mostly.** A copy with the same [`DeadLetterCopy::copy_id`] as an earlier one is dropped, as long as the implementation
///   remembers it.
/// * **Bounded.** It answers within seconds, also while the broker is away.
/// * **On `Err`.** The copy may be stored or not. The caller logs and goes on.
/// * **Cancellation.** As `Err`.
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
    /// Key of the dead letter in its table.
    pub id: Uuid,
    /// The consumer that could not handle it.
    pub consumer: String,
    /// The event type; `None` for what is no message of an outbox.
    pub event_type: Option<String>,
    /// Why: at most 1,000 characters.
    pub error: String,
    /// Failed attempts; 0 if no handler ever ran.
    pub attempts: u32,
    /// What was delivered.
    pub incoming: Incoming,
}

impl DeadLetterCopy {
    /// The same for a repetition, another one for a dead letter that was tried again and failed again.
    #[must_use]
    pub fn copy_id(&self) -> String {
        format!("{}-{}", self.id, self.attempts)
    }
}

impl fmt::Debug for DeadLetterCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers and payload may hold personal data and stay out of logs.
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
