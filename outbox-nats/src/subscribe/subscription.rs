//! Receives deliveries of one durable consumer, across outages.
//!
//! Invariants: after any failure, pulling restarts at a bounded rate. A deleted consumer is
//! detected. A process buffers at most `prefetch` messages that the inbox has not taken, so that no
//! message outlives its `ack_wait` in the buffer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::header::HeaderName;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::context::{ConsumerInfoError, ConsumerInfoErrorKind, Context};
use async_nats::jetstream::{self, AckKind};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use outbox_core::{Delivery, Incoming, SubscriberError, Subscription};
use tokio::time::{Instant, sleep_until, timeout};

use crate::stream::headers;
use crate::subscribe::failure::interrupted;
use crate::subscribe::has_ended;
use crate::subscribe::interest::cache::Oracle;
use crate::subscribe::loss::Rescue;
use crate::subscribe::pull::{Pull, PullError, connects};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Bound on waiting for room for an answer in the client's send buffer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A running subscription of a [`JetStreamSubscriber`](crate::JetStreamSubscriber).
///
/// While the server is unavailable, [`next`](Subscription::next) returns
/// [`SubscriberError::Interrupted`] at most every 50 ms to 2 s.
pub struct JetStreamSubscription {
    client: Client,
    context: Context,
    consumer: PullConsumer,
    prefetch: usize,
    silence_max: Duration,
    oracle: Arc<Oracle>,
    /// The open pull; `None` until the first call, after a failure, and at the end.
    pull: Option<Pull>,
    rescue: Rescue,
    /// The check for lost deliveries, kept because callers of `next` often drop its future.
    rescuing: Option<BoxFuture<'static, Rescue>>,
    trouble: Trouble,
}

/// Failures since the last success, kept between calls because a call may be cancelled at any
/// await.
#[derive(Default)]
struct Trouble {
    failures: u32,
    pause_until: Option<Instant>,
}

impl Trouble {
    fn note(&mut self) {
        let pause = PAUSE_MIN
            .saturating_mul(1 << self.failures.min(10))
            .min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.pause_until = Some(Instant::now() + pause);
    }
}

impl JetStreamSubscription {
    pub(crate) fn new(
        client: Client,
        context: Context,
        consumer: PullConsumer,
        oracle: Oracle,
        connects: u64,
    ) -> Self {
        Self {
            client,
            context,
            oracle: Arc::new(oracle),
            rescue: Rescue::new(connects, consumer.cached_info().num_redelivered > 0),
            rescuing: None,
            consumer,
            prefetch: 1,
            silence_max: Duration::ZERO,
            pull: None,
            trouble: Trouble::default(),
        }
    }

    pub(crate) fn pulling(self, prefetch: usize, heartbeat: Duration) -> Self {
        Self {
            prefetch,
            silence_max: 2 * heartbeat,
            ..self
        }
    }

    fn name(&self) -> &str {
        &self.consumer.cached_info().name
    }

    fn delivery(&self, message: jetstream::Message) -> Result<JetStreamDelivery, SubscriberError> {
        JetStreamDelivery::new(message, self.oracle.clone())
    }

    fn abandon_pull(&mut self) {
        self.pull = None;
        self.trouble.note();
    }

    /// Opens the pull. Cancel-safe: the next call repeats each step, and the pause ends at a fixed
    /// time.
    async fn open(&mut self) -> Result<Pull, SubscriberError> {
        if let Some(until) = self.trouble.pause_until {
            sleep_until(until).await;
        }
        if self.client.connection_state() != State::Connected {
            // While disconnected, requests would queue in the client and all be sent after the
            // reconnection.
            self.abandon_pull();
            let context = format!("consumer `{}` waits for the connection", self.name());
            return Err(SubscriberError::Interrupted {
                context,
                source: None,
            });
        }
        if self.trouble.failures > 0
            && let Err(error) = self.consumer.get_info().await
        {
            self.abandon_pull();
            return Err(self.lost(error));
        }
        let (prefetch, silence_max) = (self.prefetch, self.silence_max);
        let opened = Pull::open(&self.client, &self.context, &self.consumer, prefetch, silence_max).await;
        match opened {
            Ok(pull) => {
                self.trouble.pause_until = None;
                Ok(pull)
            }
            Err(error) => {
                self.abandon_pull();
                Err(interrupted(
                    format!("consumer `{}` cannot be pulled from", self.name()),
                    error,
                ))
            }
        }
    }

    /// Finds deliveries that closed the last connection. If the server does not answer, these
    /// deliveries are redelivered after `ack_wait` and cause the next reconnection. Cancel-safe:
    /// the next call continues.
    async fn rescue(&mut self) {
        let connects = connects(&self.client);
        if self.rescuing.is_none() && Some(connects) != self.rescue.connects {
            let rescue = std::mem::take(&mut self.rescue);
            let (context, consumer) = (self.context.clone(), self.consumer.clone());
            self.rescuing = Some(rescue.after_reconnection(context, consumer, connects).boxed());
        }
        if let Some(rescuing) = &mut self.rescuing {
            self.rescue = rescuing.await;
            self.rescuing = None;
        }
    }

    fn lost(&self, error: ConsumerInfoError) -> SubscriberError {
        match error.kind() {
            ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound => {
                self.gone(Some(error.into()))
            }
            // The next subscription reports the ended client as a configuration error.
            _ if has_ended(&self.client) => self.gone(Some(error.into())),
            _ => interrupted(format!("no answer about consumer `{}`", self.name()), error),
        }
    }

    fn gone(&self, source: Option<Box<dyn std::error::Error + Send + Sync>>) -> SubscriberError {
        let context = format!(
            "consumer `{}` or its stream was deleted; subscribe again",
            self.name()
        );
        SubscriberError::Gone { context, source }
    }
}

impl Subscription for JetStreamSubscription {
    type Delivery = JetStreamDelivery;

    async fn next(&mut self) -> Result<JetStreamDelivery, SubscriberError> {
        if self.pull.is_none() {
            self.pull = Some(self.open().await?);
        }
        let next = loop {
            self.rescue().await;
            if let Some(message) = self.rescue.take() {
                return self.delivery(message);
            }
            let Some(pull) = &mut self.pull else {
                return Err(self.gone(None));
            };
            match pull.next().await {
                Err(PullError::Reconnected) => {}
                next => break next,
            }
        };
        match next {
            Ok(message) => {
                self.trouble.failures = 0;
                self.delivery(message)
            }
            Err(error) => {
                self.abandon_pull();
                if matches!(error, PullError::Deleted) {
                    return Err(self.gone(Some(error.into())));
                }
                Err(interrupted(
                    format!("consumer `{}` was interrupted", self.name()),
                    error,
                ))
            }
        }
    }

    async fn backlog(&mut self) -> Result<u64, SubscriberError> {
        let info = self.consumer.get_info().await.map_err(|error| self.lost(error))?;
        Ok(info
            .num_pending
            .saturating_add(u64::try_from(info.num_ack_pending).unwrap_or(u64::MAX)))
    }

    /// Stopping takes up to half a second, until the last pull request expires.
    async fn stop(&mut self) -> Vec<JetStreamDelivery> {
        let messages = match &mut self.pull {
            Some(pull) => pull.finish().await,
            None => Vec::new(),
        };
        self.pull = None;
        let deliveries = messages.into_iter().map(|message| self.delivery(message));
        deliveries.filter_map(Result::ok).collect()
    }

    /// Flushes sent answers: waits for the reply to a request, because the server reads a
    /// connection in order.
    async fn flush(&mut self) -> Result<(), SubscriberError> {
        let asked = timeout(FLUSH_TIMEOUT, self.consumer.get_info()).await;
        let context = || format!("answers for consumer `{}` may not have arrived", self.name());
        match asked {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(interrupted(context(), error)),
            Err(error) => Err(interrupted(context(), error)),
        }
    }
}

impl fmt::Debug for JetStreamSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamSubscription")
            .field("consumer", &self.name())
            .finish_non_exhaustive()
    }
}

/// A message delivered to a consumer.
///
/// Answers are passed to the connection without waiting for the server. While disconnected, answers
/// are sent after the reconnection. If the connection has no room for an answer within 5 s, the
/// call returns [`SubscriberError::Interrupted`].
pub struct JetStreamDelivery {
    message: jetstream::Message,
    incoming: Incoming,
    oracle: Arc<Oracle>,
}

impl fmt::Debug for JetStreamDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamDelivery")
            .field("incoming", &self.incoming)
            .finish_non_exhaustive()
    }
}

impl JetStreamDelivery {
    fn new(message: jetstream::Message, oracle: Arc<Oracle>) -> Result<Self, SubscriberError> {
        let (delivery_count, stream_sequence) = {
            // Other clients may publish on the inbox subject. Only a delivery of JetStream can be
            // acknowledged.
            let info = message.info().map_err(|error| {
                interrupted(
                    format!("a message on `{}` is not a delivery", message.subject),
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
            stream_sequence,
        };
        Ok(Self {
            message,
            incoming,
            oracle,
        })
    }

    async fn answer(&self, kind: AckKind) -> Result<(), SubscriberError> {
        let context = |what| {
            format!(
                "answer to message at stream sequence {} {what}",
                self.incoming.stream_sequence
            )
        };
        match timeout(ANSWER_TIMEOUT, self.message.ack_with(kind)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(interrupted(context("was not sent"), error)),
            Err(_) => Err(SubscriberError::Interrupted {
                context: context("did not fit into the send buffer"),
                source: None,
            }),
        }
    }
}

impl Delivery for JetStreamDelivery {
    fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    async fn ack(&self) -> Result<(), SubscriberError> {
        self.answer(AckKind::Ack).await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), SubscriberError> {
        // Without a delay, the server queues returned messages in the order of their return.
        self.answer(AckKind::Nak((!delay.is_zero()).then_some(delay)))
            .await
    }

    async fn progress(&self) -> Result<(), SubscriberError> {
        self.answer(AckKind::Progress).await
    }

    async fn is_asked_for(&self) -> Result<bool, SubscriberError> {
        let headers = self.message.headers.as_ref();
        match headers.and_then(|headers| headers.get(HeaderName::from_static("ce-type"))) {
            Some(event_type) => {
                self.oracle
                    .is_asked_for(event_type.as_str(), &self.incoming.subject)
                    .await
            }
            // Without an event type, the consumer must handle the message.
            None => Ok(true),
        }
    }

    async fn has_predecessors(&self) -> Result<bool, SubscriberError> {
        self.oracle.predecessors.exist(&self.incoming).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_between_failures_grow_up_to_a_bound() {
        let mut trouble = Trouble::default();
        let mut pauses = Vec::new();
        for _ in 0..100 {
            trouble.note();
            pauses.extend(trouble.pause_until.map(|until| until - Instant::now()));
        }
        assert_eq!(pauses[..2], [PAUSE_MIN, 2 * PAUSE_MIN]);
        assert_eq!(pauses[99], PAUSE_MAX);
    }
}
