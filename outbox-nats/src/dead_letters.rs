//! Publishes copies of a consumer's dead letters to a stream of their own. The table of the inbox stays the truth.
//!
//! Invariants: a copy carries no header that the server would act on, except those that are set here; an original's `Nats-Rollup` would delete the earlier
//! copies. Whatever the original held, the subject of its copy is literal and bounded, and nothing panics.

use std::future::{Future, IntoFuture as _};
use std::pin::Pin;
use std::str::FromStr as _;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::header::{HeaderName, HeaderValue, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, HeaderMap, Subject};
use outbox_core::{DeadLetterCopy, DeadLetterSink, MessageId, PublishError};
use tokio::time::{Instant, timeout_at};

use crate::publish::outcome::PublishAttempt;
use crate::stream::provision::{ProvisionError, REQUEST_TIMEOUT, StreamReport};
use crate::stream::subject::{SubjectPrefix, encode_token};
use crate::stream::{EventStream, Provisioning};

/// Name of the stream unless configured otherwise.
const DEFAULT_STREAM: &str = "DEAD_LETTERS";

/// Stands in the subject for a missing event type. It has one token, which no event type has.
const NO_EVENT_TYPE: &str = "unreadable";

/// Longest event type that is used in a subject, in bytes. Ours have at most 129; those of other senders may have any length.
const EVENT_TYPE_BYTES_MAX: usize = 256;

/// Headers that are added to those of the original.
const ERROR: HeaderName = HeaderName::from_static("outbox-error");
const CONSUMER: HeaderName = HeaderName::from_static("outbox-consumer");
const ATTEMPTS: HeaderName = HeaderName::from_static("outbox-attempts");

/// How a [`DeadLetterStream`] publishes. Start from the default and set what differs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterConfig {
    /// The stream, which must not be the one of the events. Default `DEAD_LETTERS`.
    pub stream: String,
    /// First tokens of the subjects. Default `dead-letters`; must not be below a prefix of events.
    pub prefix: SubjectPrefix,
    /// Age at which copies are deleted; zero for never. Only for creating. Default 30 days.
    pub max_age: Duration,
    /// Copies of the stream in a cluster, 1 to 5. Only for creating. Default 1.
    pub replicas: usize,
    /// Whether [`DeadLetterStream::provision`] may create and change the stream. Default [`Provisioning::Create`].
    pub provisioning: Provisioning,
}

impl Default for DeadLetterConfig {
    fn default() -> Self {
        Self {
            stream: DEFAULT_STREAM.to_owned(),
            prefix: SubjectPrefix::dead_letters(),
            max_age: Duration::from_hours(30 * 24),
            replicas: 1,
            provisioning: Provisioning::default(),
        }
    }
}

impl DeadLetterConfig {
    outbox_core::__setters! {
        stream: impl Into<String>,
        prefix: SubjectPrefix,
        max_age: Duration,
        replicas: usize,
        provisioning: Provisioning,
    }
}

/// The [`DeadLetterSink`] for JetStream.
///
/// A copy goes to `<prefix>.<consumer>.<aggregate>.<event name>`, or `<prefix>.<consumer>.unreadable` if it is no message: the original's payload and
/// headers (without the server's own, `Nats-…`), and `outbox-error` in one line, `outbox-consumer` and `outbox-attempts`. Its
/// `Nats-Msg-Id` is [`DeadLetterCopy::copy_id`], so a repetition within the stream's duplicate window (10 min) is dropped.
///
/// A message so large that it has no room for the added headers is not copied: the error is [permanent](outbox_core::FailureClass::Permanent).
#[derive(Clone)]
pub struct DeadLetterStream {
    client: Client,
    context: Context,
    config: DeadLetterConfig,
}

impl std::fmt::Debug for DeadLetterStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterStream")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl DeadLetterStream {
    /// A sink over a connection. Nothing is sent.
    #[must_use]
    pub fn new(client: Client, config: DeadLetterConfig) -> Self {
        let context = ContextBuilder::new()
            .timeout(REQUEST_TIMEOUT)
            .ack_timeout(REQUEST_TIMEOUT)
            .build(client.clone());
        Self {
            client,
            context,
            config,
        }
    }

    /// Creates or checks the stream, as [`EventStream::provision`] does for events; call it at the start.
    ///
    /// # Errors
    ///
    /// As [`EventStream::provision`].
    pub async fn provision(&self) -> Result<StreamReport, ProvisionError> {
        let stream = EventStream {
            prefix: self.config.prefix.clone(),
            max_age: self.config.max_age,
            replicas: self.config.replicas,
            provisioning: self.config.provisioning,
            ..EventStream::new(&self.config.stream)
        };
        stream.provision_for(&self.client, []).await
    }

    fn subject(&self, letter: &DeadLetterCopy) -> String {
        let event_type = letter.event_type.as_deref();
        let event_type = event_type
            .filter(|event_type| event_type.len() <= EVENT_TYPE_BYTES_MAX)
            .map_or_else(
                || NO_EVENT_TYPE.to_owned(),
                |event_type| {
                    event_type
                        .split('.')
                        .map(encode_token)
                        .collect::<Vec<_>>()
                        .join(".")
                },
            );
        format!(
            "{}.{}.{event_type}",
            self.config.prefix,
            encode_token(&letter.consumer)
        )
    }

    async fn publish(&self, letter: &DeadLetterCopy) -> Result<(), PublishError> {
        let subject = self.subject(letter);
        let attempt = PublishAttempt {
            id: MessageId::from(letter.id),
            stream: &self.config.stream,
            subject: &subject,
        };
        // Otherwise the client would queue the copy and send it after the reconnection.
        if self.client.connection_state() != State::Connected {
            return Err(attempt.not_connected());
        }
        let message = PublishMessage::build()
            .payload(letter.incoming.payload.clone())
            .headers(headers(letter, &self.config.stream));
        let waited = REQUEST_TIMEOUT;
        let deadline = Instant::now() + waited;
        let sending = self
            .context
            .send_publish(Subject::from(subject.as_str()), message);
        let acknowledgement = timeout_at(deadline, sending)
            .await
            .map_err(|_| attempt.no_room(waited))?
            .map_err(|error| attempt.failure(error))?;
        // From here on the copy may be stored, whatever happens. If it is sent again, it has the same id.
        let answer = timeout_at(deadline, acknowledgement.into_future())
            .await
            .map_err(|_| attempt.unconfirmed(waited))?
            .map_err(|error| attempt.failure(error))?;
        attempt.receipt(&answer).map(drop)
    }
}

impl DeadLetterSink for DeadLetterStream {
    /// Ends within 5 s, and at once while disconnected.
    fn send<'a>(
        &'a self,
        letter: &'a DeadLetterCopy,
    ) -> Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send + 'a>> {
        Box::pin(self.publish(letter))
    }
}

/// The original's headers and ours, without those that NATS cannot carry and those that its server would act on.
fn headers(letter: &DeadLetterCopy, stream: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &letter.incoming.headers {
        let is_servers = name
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
        let Ok(name) = HeaderName::from_str(name) else {
            continue;
        };
        if !is_servers && !name.to_string().is_empty() && !value.contains(['\r', '\n', '\0']) {
            headers.append(name, HeaderValue::from(value.as_str()));
        }
    }
    for (name, value) in [
        (ERROR, one_line(&letter.error)),
        (CONSUMER, one_line(&letter.consumer)),
        (ATTEMPTS, letter.attempts.to_string()),
        (NATS_MESSAGE_ID, letter.copy_id()),
        (NATS_EXPECTED_STREAM, one_line(stream)),
    ] {
        // Replaces the header if the original has it, because the original may be a copy itself.
        headers.insert(name, HeaderValue::from(value));
    }
    headers
}

/// Text without line breaks and other control characters.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

impl SubjectPrefix {
    fn dead_letters() -> Self {
        // A literal that the check accepts; the test below says so.
        Self::new("dead-letters").unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_a_prefix_of_their_own() {
        assert_eq!(DeadLetterConfig::default().prefix.as_str(), "dead-letters");
        // The server would refuse a stream below the events' one.
        assert_ne!(SubjectPrefix::default(), SubjectPrefix::dead_letters());
    }
}
