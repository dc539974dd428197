//! Pulls the messages of one durable consumer, with requests that are counted and short.
//!
//! Invariants: the number of messages that open requests may still bring is known, and messages that have arrived are never dropped. So a subscription can end
//! without leaving anything behind: it asks for nothing more, and waits until its requests are answered or have run out.
//!
//! The stream of async-nats cannot do that. It asks for more whenever it is polled. When it is dropped, the messages that it holds and those on their way come
//! again only after `ack_wait`. The protocol cannot cancel a request, and unsubscribing its inbox races with messages that the server sends, above all over the
//! routes of a cluster. Hence the short requests.

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

/// How late the server may report that a request has run out.
const GRACE: Duration = Duration::from_secs(1);

/// The shortest silence after which a subscription is rebuilt. nats-server before 2.10 leaves out a report now and then, which looks like a silence of up to 3 s.
const SILENCE_MIN: Duration = Duration::from_secs(4);

/// Header of a report that a request has ended: the number of messages that it did not bring.
const LEFT_OVER: &str = "Nats-Pending-Messages";

/// The reason why no more messages come.
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
    /// The client has reconnected. Deliveries on the old connection may be lost. The next call goes on.
    #[error("the connection was interrupted")]
    Reconnected,
}

/// A consumer that is pulled from.
pub(crate) struct Pull {
    client: Client,
    context: Context,
    subscriber: async_nats::Subscriber,
    inbox: String,
    requests: String,
    /// Most messages that are requested and not handed out yet.
    prefetch: usize,
    silence_max: Duration,
    /// Messages that open requests may still bring, and those that are buffered here.
    pending: usize,
    /// When the server was heard last, moved on by the time in which nobody listened.
    heard_at: Instant,
    /// When the last request was sent.
    requested_at: Instant,
    /// When to check whether the requests are still open. It is kept between calls, which may all be short.
    look_at: Instant,
    /// Trouble that the server reported. It is returned after the messages that have arrived behind it.
    trouble: Option<PullError>,
    /// Connections so far: requests end with the connection that they were sent on.
    connects: u64,
}

impl Pull {
    /// Subscribes to an inbox. The first request is sent later.
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
            // A request is open for half a second, and for as long nobody may have listened before a look.
            silence_max: (silence_max + 2 * EXPIRES).max(SILENCE_MIN),
            pending: 0,
            heard_at: Instant::now(),
            requested_at: Instant::now(),
            look_at: Instant::now() + EXPIRES,
            trouble: None,
            connects: connects(client),
        })
    }

    /// The next message. Cancel-safe: the next call repeats each step, and messages that have arrived stay.
    pub(crate) async fn next(&mut self) -> Result<jetstream::Message, PullError> {
        loop {
            if self.notice_connection() {
                return Err(PullError::Reconnected);
            }
            let asks = self.trouble.is_none() && self.pending <= self.prefetch / 2 && self.is_connected();
            // While the client has no room for a request, what has arrived is read all the same, and the silence is noticed.
            if asks && let Ok(sent) = timeout_at(self.look_at, self.request()).await {
                self.trouble = sent.err();
            }
            // Buffered messages come first. They end the silence, and trouble must not drop them: they would come again only after `ack_wait`.
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

    /// Sends no more requests, waits until the open ones are answered or have run out, and returns the messages that have arrived.
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
                // The open requests bring nothing more.
                Some(Err(_)) => self.pending = 0,
                None => break,
            }
        }
        messages
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// A message that has arrived already. Tokio's budget does not apply, because it would hide the message now and then.
    fn buffered(&mut self) -> Option<Option<Message>> {
        tokio::task::unconstrained(self.subscriber.next()).now_or_never()
    }

    async fn request(&mut self) -> Result<(), PullError> {
        let batch = self.prefetch - self.pending.min(self.prefetch);
        let request = format!(r#"{{"batch":{batch},"expires":{}}}"#, EXPIRES.as_nanos());
        // If this is cancelled, the request is not sent.
        let sent = self
            .client
            .publish_with_reply(self.requests.clone(), self.inbox.clone(), request.into())
            .await;
        sent.map_err(|_| PullError::Closed)?;
        self.pending += batch;
        self.requested_at = Instant::now();
        Ok(())
    }

    /// Forgets the requests of an earlier connection. Returns whether there was one.
    fn notice_connection(&mut self) -> bool {
        let connects = connects(&self.client);
        let is_new = connects != self.connects && self.is_connected();
        if is_new {
            // The server has forgotten the requests, and messages that it sent on the old connection are lost.
            self.connects = connects;
            self.pending = 0;
            self.heard_at = Instant::now();
        }
        is_new
    }

    /// Checks after a while without a message whether the requests are still open.
    fn look_around(&mut self) -> Result<(), PullError> {
        let now = Instant::now();
        // Nobody has listened for as long as this look is late, and that was no silence.
        self.heard_at = (self.heard_at + self.look_at.elapsed()).min(now);
        self.look_at = now + EXPIRES;
        if self.requested_at.elapsed() > EXPIRES + GRACE {
            // All of them have run out by now. nats-server before 2.10 does not always report it.
            self.pending = 0;
        }
        if self.heard_at.elapsed() < self.silence_max {
            return Ok(());
        }
        Err(PullError::Silent(self.silence_max))
    }

    /// Separates messages from reports about requests, and keeps the count.
    fn sort(&mut self, received: Message) -> Result<Option<jetstream::Message>, PullError> {
        self.heard_at = Instant::now();
        // A sender may write a status into the headers of a message. Only the server answers without a subject for acknowledgements.
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
            // The request ran out, or another server leads the consumer now.
            (_, Some(left)) => self.pending = self.pending.saturating_sub(left),
            _ => return Err(PullError::Refused(format!("{status} {description}"))),
        }
        Ok(None)
    }
}

/// The number of connections so far.
pub(crate) fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}
