//! Publishes messages to a JetStream stream and waits for the acknowledgement.
//!
//! Invariant: a message is handed to the connection only while it is up. async-nats would queue it otherwise and deliver it after
//! the reconnection, minutes after its failure was reported and perhaps after another relay took over. Absent here: the window,
//! retries and order, which belong to the relay, and the meaning of failures ([`outcome`](crate::outcome)).

use std::future::IntoFuture as _;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, Subject};
use outbox_core::{FailureClass, Message, PublishError, Publisher, Receipt};
use tokio::time::{Instant, timeout_at};

use crate::headers;
use crate::outcome::Attempt;
use crate::provision::DEFAULT_STREAM;
use crate::subject::SubjectPrefix;

/// Most unacknowledged messages of a publisher unless configured otherwise; more gains nothing on one connection.
pub const DEFAULT_WINDOW: usize = 1024;

/// Room above the window, for publishes whose caller gave up and whose acknowledgement is still on its way.
const WINDOW_SLACK: usize = 256;

/// How a [`JetStreamPublisher`] publishes. Start from the default and set what differs.
///
/// ```
/// # use std::time::Duration;
/// let config = outbox_nats::PublisherConfig::default().stream("SHOP").source("shop").ack_timeout(Duration::from_secs(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublisherConfig {
    /// The stream that stores the messages. Each message carries the name, so that a stream with the wrong subjects refuses it. Default
    /// `EVENTS`.
    pub stream: String,
    /// First tokens of the default subjects. Default `events`.
    pub prefix: SubjectPrefix,
    /// The CloudEvents source: a name or URI of this service. Default `outbox`.
    pub source: String,
    /// Bound on one publish, from the call to the acknowledgement. Longer waits hide trouble, and the relay's lease must outlast it;
    /// shorter ones publish twice under load. Default 5 s.
    pub ack_timeout: Duration,
    /// Most unacknowledged messages of this publisher and its clones together; the relay's window should not be larger, since what is
    /// beyond waits and may fail as transient. Default 1024.
    pub window: usize,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            stream: DEFAULT_STREAM.to_owned(),
            prefix: SubjectPrefix::default(),
            source: "outbox".to_owned(),
            ack_timeout: Duration::from_secs(5),
            window: DEFAULT_WINDOW,
        }
    }
}

impl PublisherConfig {
    /// Sets [`Self::stream`].
    #[must_use]
    pub fn stream(mut self, stream: impl Into<String>) -> Self {
        self.stream = stream.into();
        self
    }

    /// Sets [`Self::prefix`].
    #[must_use]
    pub fn prefix(mut self, prefix: SubjectPrefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// Sets [`Self::source`].
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// Sets [`Self::ack_timeout`].
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Sets [`Self::window`].
    #[must_use]
    pub fn window(mut self, messages: usize) -> Self {
        self.window = messages;
        self
    }
}

/// The [`Publisher`] for JetStream. Clones share the connection and the window.
///
/// * **Bounded.** A publish resolves within [`PublisherConfig::ack_timeout`], and at once while disconnected.
/// * **Cancellation.** As the contract says: what was handed to the connection may be stored later.
/// * **Not promised.** A message that was on the wire when the connection broke may be stored although its failure was reported. It
///   carries its id, so the server drops it or its repetition within the stream's duplicate window.
#[derive(Debug, Clone)]
pub struct JetStreamPublisher {
    client: Client,
    context: Context,
    config: PublisherConfig,
}

impl JetStreamPublisher {
    /// A publisher over a connection. Nothing is sent, so the stream may be missing yet; check it with
    /// [`provision_stream`](crate::provision_stream).
    #[must_use]
    pub fn new(client: Client, config: PublisherConfig) -> Self {
        // The context blocks for ever when more publishes are awaited at once than it has room for, so it gets more than the window.
        let context = ContextBuilder::new()
            .timeout(config.ack_timeout)
            .ack_timeout(config.ack_timeout)
            .max_ack_inflight(config.window.saturating_add(WINDOW_SLACK))
            .build(client.clone());
        Self {
            client,
            context,
            config,
        }
    }

    /// The connection.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &PublisherConfig {
        &self.config
    }
}

impl Publisher for JetStreamPublisher {
    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        let PublisherConfig {
            stream,
            prefix,
            source,
            ack_timeout,
            ..
        } = &self.config;
        let id = message.id;
        let unsendable = |what| {
            PublishError::new(
                FailureClass::Permanent,
                format!("message {id} has {what} that cannot be sent"),
            )
        };
        let subject = prefix
            .subject(message)
            .map_err(|error| unsendable("a subject").with_source(error))?;
        let (headers, payload) = headers::encode(message, source, stream)
            .map_err(|error| unsendable("a header").with_source(error))?;

        if self.client.connection_state() != State::Connected {
            return Err(PublishError::new(
                FailureClass::Transient,
                format!("not connected, message {id} was not sent"),
            ));
        }
        // The client's own type shares the text instead of copying it.
        let subject = Subject::from(subject);
        let attempt = Attempt {
            id,
            stream,
            subject: &subject,
        };
        let deadline = Instant::now() + *ack_timeout;
        let publish = PublishMessage::build().payload(payload).headers(headers);
        let acknowledgement = timeout_at(deadline, self.context.send_publish(subject.clone(), publish))
            .await
            .map_err(|_| {
                let context = format!(
                    "window or send buffer stayed full for {ack_timeout:?}, message {id} was not sent"
                );
                PublishError::new(FailureClass::Transient, context)
            })?
            .map_err(|error| attempt.failure(error))?;
        // From here on the message may be stored, whatever happens: a crash or cancellation now means that it is published again.
        let ack = timeout_at(deadline, acknowledgement.into_future())
            .await
            .map_err(|_| {
                let context =
                    format!("message {id} was not confirmed by stream `{stream}` within {ack_timeout:?}");
                PublishError::new(FailureClass::Unknown, context)
            })?
            .map_err(|error| attempt.failure(error))?;
        attempt.receipt(&ack)
    }
}
