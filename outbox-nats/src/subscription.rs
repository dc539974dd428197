//! Receives deliveries of one durable consumer, through outages.
//!
//! Invariants: after any trouble the pull stream is rebuilt, at a bounded pace, and a deleted consumer is noticed; a process holds at
//! most `prefetch` messages that nobody has asked for yet, so that they do not outlive their `ack_wait` in a buffer. Absent here:
//! deduplication and dispatch, which belong to the inbox.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::header::HeaderName;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::context::{ConsumerInfoError, ConsumerInfoErrorKind};
use async_nats::jetstream::{self, AckKind};
use futures_util::StreamExt as _;
use outbox_core::{Delivery, Incoming, SourceError, Subscription};
use tokio::time::{Instant, sleep_until, timeout};

use crate::headers;
use crate::source::interrupted;

/// Time for which one pull request waits for messages on the server.
const PULL_EXPIRES: Duration = Duration::from_secs(30);
/// The server wants at least this between heartbeats.
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
/// The server wants at least two heartbeats per pull request.
const HEARTBEAT_MAX: Duration = Duration::from_secs(15);

/// Pause before the pull stream is rebuilt for the first time after a delivery; doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Bound on handing an answer to the connection. It waits only while the send buffer is full, during an outage.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A running subscription of a [`JetStreamSource`](crate::JetStreamSource).
///
/// While the server is away, [`next`](Subscription::next) returns [`SourceError::Interrupted`] at most every 50 ms to 2 s, so a loop over it
/// does not spin.
pub struct JetStreamSubscription {
    client: Client,
    consumer: PullConsumer,
    batch: usize,
    heartbeat: Duration,
    /// The subscribed event types, if the server sends others too.
    wanted: Option<HashSet<String>>,
    /// `None` until the first call, and after trouble.
    messages: Option<pull::Stream>,
    trouble: Trouble,
}

/// What is remembered between calls, because a call may be cancelled at any await.
#[derive(Debug, Default)]
struct Trouble {
    /// Failures since the last delivery.
    failures: u32,
    /// No rebuilding before this.
    pause_until: Option<Instant>,
}

impl JetStreamSubscription {
    pub(crate) fn new(
        client: Client,
        consumer: PullConsumer,
        prefetch: usize,
        heartbeat: Duration,
        wanted: Option<HashSet<String>>,
    ) -> Self {
        Self {
            client,
            consumer,
            // The pull stream asks for the next batch when half of the last one is left, so it holds up to one and a half.
            batch: (prefetch.saturating_mul(2) / 3).max(1),
            heartbeat: heartbeat.clamp(HEARTBEAT_MIN, HEARTBEAT_MAX),
            wanted,
            messages: None,
            trouble: Trouble::default(),
        }
    }

    /// Whether the consumer did not ask for this. What has no type is passed on, for the consumer to judge.
    fn is_unwanted(&self, message: &jetstream::Message) -> bool {
        let event_type = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get(HeaderName::from_static("ce-type")));
        match (&self.wanted, event_type) {
            (Some(wanted), Some(event_type)) => !wanted.contains(event_type.as_str()),
            _ => false,
        }
    }

    fn name(&self) -> &str {
        &self.consumer.cached_info().name
    }

    /// Drops the pull stream; the next call rebuilds it after a pause.
    fn give_up_stream(&mut self) {
        self.messages = None;
        let pause = PAUSE_MIN
            .saturating_mul(1 << self.trouble.failures.min(10))
            .min(PAUSE_MAX);
        self.trouble.failures = self.trouble.failures.saturating_add(1);
        self.trouble.pause_until = Some(Instant::now() + pause);
    }

    /// Waits out the pause, finds out whether the consumer still exists, and starts pulling.
    ///
    /// Cancel-safe: each step is repeated by the next call, and the pause ends at a fixed time.
    async fn open(&mut self) -> Result<(), SourceError> {
        if let Some(until) = self.trouble.pause_until {
            sleep_until(until).await;
        }
        if self.client.connection_state() != State::Connected {
            // Requests would pile up in the client's buffer and all be sent after the reconnection.
            self.give_up_stream();
            let context = format!("consumer `{}` waits for the connection", self.name());
            return Err(SourceError::Interrupted {
                context,
                source: None,
            });
        }
        if self.trouble.failures > 0
            && let Err(error) = self.consumer.get_info().await
        {
            self.give_up_stream();
            return Err(self.lost(error));
        }
        let stream = self.consumer.stream();
        let stream = stream
            .max_messages_per_batch(self.batch)
            .expires(PULL_EXPIRES)
            .heartbeat(self.heartbeat);
        match stream.messages().await {
            Ok(messages) => {
                self.messages = Some(messages);
                self.trouble.pause_until = None;
                Ok(())
            }
            Err(error) => {
                self.give_up_stream();
                Err(interrupted(
                    format!("consumer `{}` cannot be pulled from", self.name()),
                    error,
                ))
            }
        }
    }

    /// Tells a consumer that is gone from a server that is.
    fn lost(&self, error: ConsumerInfoError) -> SourceError {
        match error.kind() {
            ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound => {
                self.gone(Some(error.into()))
            }
            _ => interrupted(format!("no answer about consumer `{}`", self.name()), error),
        }
    }

    fn gone(&self, source: Option<Box<dyn std::error::Error + Send + Sync>>) -> SourceError {
        let context = format!(
            "consumer `{}` or its stream was deleted; subscribe again",
            self.name()
        );
        SourceError::Gone { context, source }
    }
}

impl Subscription for JetStreamSubscription {
    type Delivery = JetStreamDelivery;

    async fn next(&mut self) -> Result<JetStreamDelivery, SourceError> {
        if self.messages.is_none() {
            self.open().await?;
        }
        let received = loop {
            // Without a pull stream there is nothing to receive, as at its end; after `open` there is one.
            let received = match &mut self.messages {
                Some(messages) => messages.next().await,
                None => None,
            };
            match received {
                // Cancelled here, it comes again after `ack_wait`.
                Some(Ok(message)) if self.is_unwanted(&message) => {
                    JetStreamDelivery::new(message)?.ack().await?;
                }
                received => break received,
            }
        };
        match received {
            Some(Ok(message)) => {
                self.trouble.failures = 0;
                JetStreamDelivery::new(message)
            }
            Some(Err(error)) => {
                self.give_up_stream();
                if error.kind() == pull::MessagesErrorKind::ConsumerDeleted {
                    return Err(self.gone(Some(error.into())));
                }
                Err(interrupted(
                    format!("consumer `{}` was interrupted", self.name()),
                    error,
                ))
            }
            None => {
                self.give_up_stream();
                let context = format!("pull stream of consumer `{}` ended", self.name());
                Err(SourceError::Interrupted {
                    context,
                    source: None,
                })
            }
        }
    }

    async fn backlog(&mut self) -> Result<u64, SourceError> {
        let info = self.consumer.get_info().await.map_err(|error| self.lost(error))?;
        Ok(info
            .num_pending
            .saturating_add(u64::try_from(info.num_ack_pending).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for JetStreamSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamSubscription")
            .field("consumer", &self.name())
            .field("batch", &self.batch)
            .field("heartbeat", &self.heartbeat)
            .field("pulling", &self.messages.is_some())
            .field("trouble", &self.trouble)
            .finish_non_exhaustive()
    }
}

/// A message that a consumer was given.
///
/// Answers are handed to the connection without waiting for the server, as the contract says; while disconnected they are sent after the
/// reconnection, and if there is no room for them within 5 s, they are [`SourceError::Interrupted`].
#[derive(Debug)]
pub struct JetStreamDelivery {
    message: jetstream::Message,
    incoming: Incoming,
}

impl JetStreamDelivery {
    fn new(message: jetstream::Message) -> Result<Self, SourceError> {
        let (delivery_count, position) = {
            // Somebody else may send to our inbox subject; what JetStream did not deliver cannot be acknowledged either.
            let info = message.info().map_err(|error| {
                interrupted(
                    format!("a message on `{}` is no delivery", message.subject),
                    error,
                )
            })?;
            (
                u64::try_from(info.delivered).unwrap_or(1).max(1),
                info.stream_sequence,
            )
        };
        let incoming = Incoming {
            subject: message.subject.to_string(),
            headers: message.headers.as_ref().map(headers::decode).unwrap_or_default(),
            payload: message.payload.clone(),
            delivery_count,
            position,
        };
        Ok(Self { message, incoming })
    }

    async fn answer(&self, kind: AckKind) -> Result<(), SourceError> {
        let context = |what| format!("answer to message at position {} {what}", self.incoming.position);
        match timeout(ANSWER_TIMEOUT, self.message.ack_with(kind)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(interrupted(context("was not sent"), error)),
            Err(_) => Err(SourceError::Interrupted {
                context: context("found no room in the send buffer"),
                source: None,
            }),
        }
    }
}

impl Delivery for JetStreamDelivery {
    fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    async fn ack(&self) -> Result<(), SourceError> {
        self.answer(AckKind::Ack).await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), SourceError> {
        self.answer(AckKind::Nak(Some(delay))).await
    }

    async fn progress(&self) -> Result<(), SourceError> {
        self.answer(AckKind::Progress).await
    }
}
