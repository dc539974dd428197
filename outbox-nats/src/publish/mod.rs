//! Publishes messages to a JetStream stream and waits for the acknowledgement.
//!
//! Invariant: a message is sent only while the connection is up. Otherwise async-nats would send it
//! after the reconnection, perhaps after another relay took over.

pub(crate) mod duplicate;
pub(crate) mod fence;
mod inspection;
pub(crate) mod outcome;
pub(crate) mod search;
pub(crate) mod sequences;

use std::fmt;
use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, Subject};
use outbox_core::{Destination, FailureClass, Message, PublishError, Publisher, Receipt};
use tokio::time::{Instant, timeout_at};

use crate::connect::connection::{Line, Live};
use crate::publish::outcome::{PublishAttempt, not_captured};
use crate::publish::search::Searches;
use crate::publish::sequences::StreamSequences;
use crate::stream::EventStream;
use crate::stream::headers;
use crate::stream::preflight;
use crate::stream::subject::captures;

pub(crate) const WINDOW: usize = 1024;

/// Maximum number of publishes in flight: the relay's window, and publishes whose caller stopped
/// waiting. The JetStream context blocks without limit beyond this number.
const IN_FLIGHT_MAX: usize = WINDOW + 256;

/// How a [`JetStreamPublisher`] publishes.
///
/// ```
/// # use std::time::Duration;
/// # use outbox_nats::PublisherConfig;
/// let config = PublisherConfig::default().source("shop").ack_timeout(Duration::from_secs(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublisherConfig {
    /// The CloudEvents source: a name or URI of this service. Default `outbox`.
    pub source: String,
    /// Maximum time of one publish, from the call to the acknowledgement. The relay's lease must be
    /// longer. With a short timeout, the relay publishes messages twice under load. Default 5 s.
    pub ack_timeout: Duration,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            source: "outbox".to_owned(),
            ack_timeout: Duration::from_secs(5),
        }
    }
}

impl PublisherConfig {
    outbox_core::__setters! {
        source: impl Into<String>,
        ack_timeout: Duration,
    }
}

/// The [`Publisher`] for JetStream. Clones share the connection and the window of messages in
/// flight.
///
/// With a client of [`connect`](crate::connect), the publisher opens its own connection on its own
/// thread at the first publish.
///
/// * **Bounded.** A publish resolves within [`PublisherConfig::ack_timeout`]. While the publisher
///   is disconnected, a publish fails at once. The first publishes wait up to 2 s for the
///   connection.
/// * **Cancellation.** If a publish is cancelled, a message already passed to the connection may be
///   stored later.
/// * **Abandon.** [`Publisher::abandon`] drops queued messages with the connection, within 1 s.
///   Reconnecting takes up to 2 s more. Bytes in the operating system's buffers may still arrive. A
///   client that the program created itself can only be asked to reconnect.
#[derive(Clone)]
pub struct JetStreamPublisher {
    line: Arc<Line>,
    stream_sequences: Arc<Mutex<StreamSequences>>,
    searches: Arc<Mutex<Searches>>,
    captured: Arc<Mutex<Vec<String>>>,
    created: Arc<Mutex<Option<String>>>,
    stream: EventStream,
    config: PublisherConfig,
}

impl JetStreamPublisher {
    pub(crate) fn new(stream: EventStream, client: Client, config: PublisherConfig) -> Self {
        Self {
            line: Arc::new(Line::new(client, config.ack_timeout, IN_FLIGHT_MAX)),
            stream_sequences: Arc::default(),
            searches: Arc::default(),
            captured: Arc::default(),
            created: Arc::default(),
            stream,
            config,
        }
    }

    /// Sets the configuration. Call `with_config` before the first publish: the returned publisher
    /// shares no connection with earlier clones.
    #[must_use]
    pub fn with_config(self, config: PublisherConfig) -> Self {
        let client = self.client().clone();
        Self::new(self.stream, client, config)
    }

    /// The client passed to `EventStream::publisher`.
    #[must_use]
    pub fn client(&self) -> &Client {
        self.line.given()
    }

    /// The stream of this publisher.
    #[must_use]
    pub fn stream(&self) -> &EventStream {
        &self.stream
    }

    /// The configuration of this publisher.
    #[must_use]
    pub fn config(&self) -> &PublisherConfig {
        &self.config
    }

    /// Whether the publisher's connection is up, for a health check. Returns `false` before the
    /// first publish.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let slot = self.line.slot();
        slot.get()
            .is_some_and(|live| live.client.connection_state() == State::Connected)
    }

    pub(crate) fn stream_sequences(&self) -> MutexGuard<'_, StreamSequences> {
        self.stream_sequences
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn created(&self) -> MutexGuard<'_, Option<String>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn searches(&self) -> MutexGuard<'_, Searches> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn connected<T>(
        &self,
        use_it: impl AsyncFnOnce(&Live) -> Result<T, PublishError>,
    ) -> Result<T, PublishError> {
        let slot = self.line.slot();
        let live = self.line.open(&slot).await;
        if live.client.connection_state() != State::Connected {
            let context = format!("not connected, stream `{}` is unreachable", self.stream.name);
            return Err(PublishError::new(FailureClass::Unknown, context));
        }
        use_it(live).await
    }

    fn is_fenced(&self, message: &Message) -> bool {
        self.stream.fenced && message.sequence.is_some() && message.subject.is_none()
    }

    pub(crate) fn subject_of(&self, message: &Message) -> Result<String, PublishError> {
        if self.is_fenced(message) {
            return Ok(self.stream.prefix.aggregate_subject(&message.aggregate));
        }
        let subject = self.stream.subject(message);
        subject.map_err(|error| unsendable(message, "a subject").with_source(error))
    }

    /// Rejects a fixed subject that the stream does not capture, because a writer could otherwise
    /// send requests to another program. The relay retries the message, because an operator may add
    /// the subject.
    async fn check_captured(&self, message: &Message, subject: &str) -> Result<(), PublishError> {
        let captured = |subjects: &[String]| captures(subjects, subject);
        let known = || self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        if captured(&self.stream.subjects) || captured(&known()) {
            return Ok(());
        }
        let name = &self.stream.name;
        let subjects = self
            .connected(async |live| {
                let stream = live.context.get_stream(name).await.map_err(|error| {
                    let context = format!("stream `{name}` cannot be read, so its subjects are unknown");
                    PublishError::new(FailureClass::Transient, context).with_source(error)
                })?;
                Ok(stream.cached_info().config.subjects.clone())
            })
            .await?;
        let is_captured = captured(&subjects);
        *known() = subjects;
        if is_captured {
            return Ok(());
        }
        let context = not_captured(name, subject, message.id);
        Err(PublishError::new(FailureClass::Uncaptured, context))
    }

    pub(crate) async fn send(
        &self,
        attempt: PublishAttempt<'_>,
        subject: Subject,
        publish: PublishMessage,
        deadline: Instant,
    ) -> Result<Receipt, PublishError> {
        let waited = self.config.ack_timeout;
        let slot = self.line.slot();
        let live = match slot.get() {
            Some(live) if live.client.connection_state() == State::Connected => live,
            _ => timeout_at(deadline, Box::pin(self.line.open(&slot)))
                .await
                .map_err(|_| attempt.not_connected())?,
        };
        if live.client.connection_state() != State::Connected {
            return Err(attempt.not_connected());
        }
        let reports = self.line.reports().map(|reports| (reports, reports.watch()));
        let sent_at = Instant::now();
        let acknowledgement = timeout_at(deadline, live.context.send_publish(subject, publish))
            .await
            .map_err(|_| attempt.no_room(waited))?
            .map_err(|error| attempt.failure(error))?;
        // The message is sent, so the server may store the message.
        let acknowledged = timeout_at(deadline, acknowledgement.into_future());
        let answer = match reports {
            None => acknowledged.await,
            Some((reports, changes)) => tokio::select! {
                biased;
                answer = acknowledged => answer,
                () = reports.denied_since(attempt.subject, sent_at, changes) => return Err(attempt.denied()),
            },
        };
        let Ok(answer) = answer else {
            return Err(self.silence(live, &attempt));
        };
        match answer {
            Ok(ack) => attempt.receipt(&ack),
            Err(error) => {
                let error = attempt.failure(error);
                if error.class() == FailureClass::Unknown && Instant::now() >= deadline {
                    return Err(self.silence(live, &attempt));
                }
                Err(error)
            }
        }
    }

    pub(crate) fn is_denied(&self, subject: &str) -> bool {
        let reports = self.line.reports();
        reports.is_some_and(|reports| reports.is_denied(subject))
    }

    pub(crate) fn denied_under(&self, prefix: &str) -> Option<String> {
        self.line.reports()?.denied_under(prefix)
    }

    /// Classifies a missing answer: `Unknown`, unless the server denies receiving replies.
    fn silence(&self, live: &Live, attempt: &PublishAttempt<'_>) -> PublishError {
        let inbox = live.client.new_inbox();
        let prefix = inbox.rsplit_once('.').map_or("", |(prefix, _)| prefix);
        match self
            .line
            .reports()
            .and_then(|reports| reports.denied_inbox(prefix))
        {
            Some(inbox) => attempt.denied_answer(&inbox),
            None => attempt.unconfirmed(self.config.ack_timeout),
        }
    }
}

impl fmt::Debug for JetStreamPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamPublisher")
            .field("client", self.client())
            .field("stream", &self.stream)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn unsendable(message: &Message, what: &str) -> PublishError {
    PublishError::new(
        FailureClass::Permanent,
        format!("message {} has {what} that cannot be sent", message.id),
    )
}

impl Publisher for JetStreamPublisher {
    fn destination(&self) -> Option<Destination> {
        Some(Destination {
            stream: self.stream.name.clone(),
            instance: self.created().clone(),
            subjects: self.stream.subjects_of_messages(),
            source: self.config.source.clone(),
        })
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        let stream = &self.stream.name;
        let subject = self.subject_of(message)?;
        if message.subject.is_some() && !self.is_fenced(message) {
            Box::pin(self.check_captured(message, &subject)).await?;
        }
        let subject = Subject::from(subject);
        let encode = || {
            let (headers, payload) = headers::encode(message, &self.config.source, stream)
                .map_err(|error| unsendable(message, "a header").with_source(error))?;
            Ok(PublishMessage::build().payload(payload).headers(headers))
        };
        let attempt = PublishAttempt {
            id: message.id,
            stream,
            subject: &subject,
        };
        let deadline = Instant::now() + self.config.ack_timeout;
        let receipt = if self.is_fenced(message) {
            Box::pin(fence::send(
                self,
                message,
                attempt,
                subject.clone(),
                deadline,
                encode,
            ))
            .await?
        } else {
            self.send(attempt, subject.clone(), encode()?, deadline).await?
        };
        if receipt.duplicate {
            return Box::pin(duplicate::check(self, message, attempt, receipt, deadline)).await;
        }
        Ok(receipt)
    }

    /// Waits at most 2 s for the connection. Then sends three requests of at most
    /// [`PublisherConfig::ack_timeout`] each.
    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        if let Some(reason) = self.stream.contradiction() {
            let context = format!("stream `{}`: {reason}", self.stream.name.escape_debug());
            return Err(PublishError::new(FailureClass::Configuration, context));
        }
        let (warnings, created) = self
            .connected(async |live| {
                let denied = |subject: &str| self.is_denied(subject);
                preflight::check(live, &self.stream, denied).await
            })
            .await?;
        *self.created() = Some(created);
        if self.stream.fenced {
            fence::check(self).await?;
        }
        Ok(warnings)
    }

    async fn abandon(&self) {
        self.line.renew().await;
    }
}
