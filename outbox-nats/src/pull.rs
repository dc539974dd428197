//! Pulls the messages of one durable consumer, with requests that are counted and short.
//!
//! Invariant: what open requests may still bring is known, so that a subscription can end without leaving anything behind: it asks for nothing more, and
//! waits until its requests are answered or have run out. async-nats' own stream cannot do that: it asks for more whenever it is looked at, and when it is
//! dropped, what it holds and what is on its way comes again after `ack_wait` only. Cancelling a request is no part of the protocol, and taking the
//! interest in its inbox away races with what the server sends, over the routes of a cluster above all; hence the short requests. Absent here: what
//! to do about trouble (`subscription`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, Message, StatusCode};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, timeout_at};

/// Time for which one request waits for messages on the server, and so the longest wait at the end.
pub(crate) const EXPIRES: Duration = Duration::from_millis(500);

/// How late the server's word that a request has run out may be at the end.
const GRACE: Duration = Duration::from_secs(1);

/// What tells how many of the messages asked for a request that is over did not bring.
const LEFT_OVER: &str = "Nats-Pending-Messages";

/// Why nothing more comes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error("the consumer was deleted")]
    Deleted,
    #[error("the server refused a pull request: {0}")]
    Refused(String),
    #[error("nobody answered a pull request")]
    NoResponders,
    #[error("the server has been silent for {0:?}")]
    Silent(Duration),
    #[error("the connection is closed")]
    Closed,
}

/// A consumer that is pulled from.
pub(crate) struct Pull {
    client: Client,
    context: Context,
    subscriber: async_nats::Subscriber,
    inbox: String,
    requests: String,
    /// Most messages that are asked for and not handed out.
    prefetch: usize,
    silence_max: Duration,
    /// Messages that open requests may still bring, or have brought here.
    pending: usize,
    heard_at: Instant,
    /// When the last request was sent.
    requested_at: Instant,
    /// When to look whether the requests are still open; kept between calls, which may all be short.
    look_at: Instant,
    /// Connections so far: requests end with the connection that they were sent on.
    connects: u64,
}

impl Pull {
    /// Sends nothing yet but the subscription to an inbox.
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
            silence_max: silence_max + EXPIRES,
            pending: 0,
            heard_at: Instant::now(),
            requested_at: Instant::now(),
            look_at: Instant::now() + EXPIRES,
            connects: connects(client),
        })
    }

    /// The next message. Cancel-safe: each step is repeated by the next call, and what has arrived stays.
    pub(crate) async fn next(&mut self) -> Result<jetstream::Message, PullError> {
        loop {
            self.notice_connection();
            if self.pending <= self.prefetch / 2 && self.is_connected() {
                self.request().await?;
            }
            // First what is here: with the connection lost or after a long pause of the caller it is not silence.
            let received = match self.buffered() {
                Some(received) => received,
                None => match timeout_at(self.look_at, self.subscriber.next()).await {
                    Ok(received) => received,
                    Err(_) => {
                        self.look_around()?;
                        continue;
                    }
                },
            };
            if let Some(message) = self.sort(received.ok_or(PullError::Closed)?)? {
                return Ok(message);
            }
        }
    }

    /// Asks for nothing more, waits until the open requests are answered or have run out, and returns what has come.
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
                // Nothing more will come of what is open.
                Some(Err(_)) => self.pending = 0,
                None => break,
            }
        }
        messages
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// What has arrived already. Not subject to Tokio's budget, which would hide it now and then.
    fn buffered(&mut self) -> Option<Option<Message>> {
        tokio::task::unconstrained(self.subscriber.next()).now_or_never()
    }

    async fn request(&mut self) -> Result<(), PullError> {
        let batch = self.prefetch - self.pending.min(self.prefetch);
        let request = format!(r#"{{"batch":{batch},"expires":{}}}"#, EXPIRES.as_nanos());
        // Cancelled here, it is not sent.
        let sent = self
            .client
            .publish_with_reply(self.requests.clone(), self.inbox.clone(), request.into())
            .await;
        sent.map_err(|_| PullError::Closed)?;
        if self.pending == 0 {
            // Nothing was open, so the silence so far was nobody's fault.
            self.heard_at = Instant::now();
        }
        self.pending += batch;
        self.requested_at = Instant::now();
        Ok(())
    }

    /// On another connection nothing is open.
    fn notice_connection(&mut self) {
        let connects = connects(&self.client);
        if connects != self.connects && self.is_connected() {
            // The server has forgotten them, and what it had sent on the old connection.
            self.connects = connects;
            self.pending = 0;
            self.heard_at = Instant::now();
        }
    }

    /// After a while without a message: whether the requests are still open somewhere.
    fn look_around(&mut self) -> Result<(), PullError> {
        self.look_at = Instant::now() + EXPIRES;
        if self.requested_at.elapsed() > EXPIRES + GRACE {
            // All have run out by now. nats-server before 2.10 does not always say so.
            self.pending = 0;
        }
        if self.heard_at.elapsed() < self.silence_max {
            return Ok(());
        }
        Err(PullError::Silent(self.silence_max))
    }

    /// Tells messages from what the server says about requests, and keeps the count.
    fn sort(&mut self, received: Message) -> Result<Option<jetstream::Message>, PullError> {
        self.heard_at = Instant::now();
        let Some(status) = received.status.filter(|status| *status != StatusCode::OK) else {
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
            // It ran out, or its server handed the consumer over.
            (_, Some(left)) => self.pending = self.pending.saturating_sub(left),
            _ => return Err(PullError::Refused(format!("{status} {description}"))),
        }
        Ok(None)
    }
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}
