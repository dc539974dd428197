//! Pulls messages of one durable consumer, with short, counted requests.
//!
//! Invariants: the number of messages that open requests may still deliver is known. Received
//! messages are never dropped. At its end, a subscription waits until its open requests are
//! answered or expired.
//!
//! If the stream of async-nats is dropped, its buffered and in-flight messages are redelivered only
//! after `ack_wait`. The protocol cannot cancel a request, so requests are short.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, Message, StatusCode};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, timeout_at};

/// Lifetime of a request on the server, and so the longest wait at the end of a subscription.
pub(crate) const EXPIRES: Duration = Duration::from_millis(500);

const GRACE: Duration = Duration::from_secs(1);

/// Minimum of the allowed silence. nats-server before 2.10 may omit a report, which looks like a
/// silence of 3 s.
const SILENCE_MIN: Duration = Duration::from_secs(4);

const LEFT_OVER: &str = "Nats-Pending-Messages";

#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error("the consumer was deleted")]
    Deleted,
    #[error("the server refused a pull request: {0}")]
    Refused(String),
    #[error("no answer to a pull request")]
    NoResponders,
    #[error("the server has been silent for {0:?}")]
    Silent(Duration),
    #[error("the connection is closed")]
    Closed,
    /// The client has reconnected. Deliveries sent before the interruption may be lost.
    #[error("the connection was interrupted")]
    Reconnected,
}

pub(crate) struct Pull {
    client: Client,
    context: Context,
    subscriber: async_nats::Subscriber,
    inbox: String,
    requests: String,
    /// Maximum number of requested or buffered messages.
    prefetch: usize,
    silence_max: Duration,
    /// Number of messages that open requests may still deliver, plus buffered messages.
    pending: usize,
    /// Time of the server's last message, plus the time in which no caller awaited `next`.
    heard_at: Instant,
    requested_at: Instant,
    /// Time of the next check of the server's silence. The time outlives a call of `next`, because
    /// calls may be short.
    look_at: Instant,
    trouble: Option<PullError>,
    connects: u64,
}

impl Pull {
    pub(crate) async fn open(
        client: &Client,
        context: &Context,
        consumer: &PullConsumer,
        prefetch: usize,
        silence_max: Duration,
    ) -> Result<Self, async_nats::SubscribeError> {
        let inbox = client.new_inbox();
        let info = consumer.cached_info();
        let requests = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", info.stream_name, info.name);
        Ok(Self {
            subscriber: client.subscribe(inbox.clone()).await?,
            client: client.clone(),
            context: context.clone(),
            inbox,
            requests,
            prefetch: prefetch.max(1),
            // A pull request expires after half a second, and the check of the silence may be half
            // a second late.
            silence_max: (silence_max + 2 * EXPIRES).max(SILENCE_MIN),
            pending: 0,
            heard_at: Instant::now(),
            requested_at: Instant::now(),
            look_at: Instant::now() + EXPIRES,
            trouble: None,
            connects: connects(client),
        })
    }

    /// Cancel-safe: the next call repeats each step, and received messages stay in the buffer.
    pub(crate) async fn next(&mut self) -> Result<jetstream::Message, PullError> {
        loop {
            if self.notice_connection() {
                return Err(PullError::Reconnected);
            }
            let asks = self.trouble.is_none() && self.pending <= self.prefetch / 2 && self.is_connected();
            // If the client has no room for a request, buffered messages are still read.
            if asks && let Ok(sent) = timeout_at(self.look_at, self.request()).await {
                self.trouble = sent.err();
            }
            // Buffered messages come before a failure: dropped messages would be redelivered only
            // after `ack_wait`.
            let received = match (self.buffered(), self.trouble.take()) {
                (Some(received), trouble) => {
                    self.trouble = trouble;
                    received
                }
                (None, Some(trouble)) => return Err(trouble),
                (None, None) => match timeout_at(self.look_at, self.subscriber.next()).await {
                    Ok(received) => received,
                    Err(_) => {
                        if !self.notice_connection() {
                            self.look_around()?;
                            continue;
                        }
                        return Err(PullError::Reconnected);
                    }
                },
            };
            match self.sort(received.ok_or(PullError::Closed)?) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(trouble) => self.trouble = Some(trouble),
            }
        }
    }

    /// Waits until open requests are answered or expired, and returns the received messages.
    pub(crate) async fn finish(&mut self) -> Vec<jetstream::Message> {
        self.notice_connection();
        let until = Instant::now() + EXPIRES + GRACE;
        let mut messages = Vec::new();
        loop {
            let received = match self.buffered() {
                Some(received) => received,
                None if self.pending == 0 || !self.is_connected() => break,
                None => match timeout_at(until, self.subscriber.next()).await {
                    Ok(received) => received,
                    Err(_) => break,
                },
            };
            match received.map(|received| self.sort(received)) {
                Some(Ok(message)) => messages.extend(message),
                Some(Err(_)) => self.pending = 0,
                None => break,
            }
        }
        messages
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Reads outside Tokio's budget, which would sometimes hide a received message.
    fn buffered(&mut self) -> Option<Option<Message>> {
        tokio::task::unconstrained(self.subscriber.next()).now_or_never()
    }

    async fn request(&mut self) -> Result<(), PullError> {
        let batch = self.prefetch - self.pending.min(self.prefetch);
        let request = format!(r#"{{"batch":{batch},"expires":{}}}"#, EXPIRES.as_nanos());
        let sent = self
            .client
            .publish_with_reply(self.requests.clone(), self.inbox.clone(), request.into())
            .await;
        sent.map_err(|_| PullError::Closed)?;
        self.pending += batch;
        self.requested_at = Instant::now();
        Ok(())
    }

    fn notice_connection(&mut self) -> bool {
        let connects = connects(&self.client);
        let is_new = connects != self.connects && self.is_connected();
        if is_new {
            // After a reconnect, the server has dropped the open pull requests, and deliveries in
            // flight are lost.
            self.connects = connects;
            self.pending = 0;
            self.heard_at = Instant::now();
        }
        is_new
    }

    fn look_around(&mut self) -> Result<(), PullError> {
        let now = Instant::now();
        // A late check means that `next` was not polled, not that the server was silent.
        self.heard_at = (self.heard_at + self.look_at.elapsed()).min(now);
        self.look_at = now + EXPIRES;
        if self.requested_at.elapsed() > EXPIRES + GRACE {
            // All requests have expired. nats-server before 2.10 does not always report the expiry.
            self.pending = 0;
        }
        if self.heard_at.elapsed() < self.silence_max {
            return Ok(());
        }
        Err(PullError::Silent(self.silence_max))
    }

    fn sort(&mut self, received: Message) -> Result<Option<jetstream::Message>, PullError> {
        self.heard_at = Instant::now();
        // A sender may put a status into the headers. Only server reports have no acknowledgement
        // subject.
        let is_delivery = received
            .reply
            .as_ref()
            .is_some_and(|reply| reply.starts_with("$JS.ACK."));
        let Some(status) = received
            .status
            .filter(|status| *status != StatusCode::OK && !is_delivery)
        else {
            self.pending = self.pending.saturating_sub(1);
            return Ok(Some(jetstream::Message {
                message: received,
                context: self.context.clone(),
            }));
        };
        let left_over = received
            .headers
            .as_ref()
            .and_then(|headers| headers.get(LEFT_OVER))
            .and_then(|left| left.as_str().parse::<usize>().ok());
        let description = received.description.unwrap_or_default();
        match (status, left_over) {
            (StatusCode::IDLE_HEARTBEAT, _) => {}
            (StatusCode::NO_RESPONDERS, _) => return Err(PullError::NoResponders),
            _ if description == "Consumer Deleted" => return Err(PullError::Deleted),
            (_, Some(left)) => self.pending = self.pending.saturating_sub(left),
            _ => return Err(PullError::Refused(format!("{status} {description}"))),
        }
        Ok(None)
    }
}

pub(crate) fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}
