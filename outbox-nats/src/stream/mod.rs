//! Describes the event stream: name, prefix, limits and mode.
//!
//! Invariant: publishers and subscribers are created only by [`EventStream::provision`],
//! [`EventStream::publisher`] and [`EventStream::subscriber`]. So all of them use the same names
//! and mode.

pub(crate) mod admission;
pub(crate) mod consumers;
pub(crate) mod headers;
pub(crate) mod listing;
pub(crate) mod message;
pub(crate) mod preflight;
pub(crate) mod provision;
pub(crate) mod subject;

use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use outbox_core::{EventDescriptor, Message};

use crate::connect::{self, ConnectError, connect_options, inbox_prefix_of};
use crate::publish::{JetStreamPublisher, PublisherConfig};
use crate::stream::subject::{
    SubjectError, SubjectPrefix, captures, is_plain_name, shard_token, without_covered,
};
use crate::subscribe::JetStreamSubscriber;

const SHARDS_MAX: u32 = 65_536;

/// Whether this process may create and change streams and consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Provisioning {
    /// Creates missing streams and consumers, and adds missing subjects and settings.
    #[default]
    Create,
    /// Changes nothing. If a part is missing, the error contains the command that creates the part.
    VerifyOnly,
}

/// The stream that carries events: name, subjects, limits and mode.
///
/// Processes that share a stream should build this description in one shared function.
///
/// | for | call |
/// |---|---|
/// | a connection | [`connect`](Self::connect), [`connect_with`](Self::connect_with) |
/// | the stream, created or checked | [`provision`](Self::provision) |
/// | the relay | [`publisher`](Self::publisher) |
/// | the inbox | [`subscriber`](Self::subscriber) |
///
/// ```no_run
/// # use std::error::Error;
/// # async fn demo(client: outbox_nats::async_nats::Client) -> Result<(), Box<dyn Error>> {
/// use outbox_nats::EventStream;
///
/// let shop = EventStream::new("SHOP").with_prefix("shop")?;
/// let shop = shop.with_max_bytes(10 << 30).with_replicas(3);
/// shop.provision(&client).await?;
/// let (publisher, subscriber) = (shop.publisher(client.clone()), shop.subscriber(client));
/// # Ok(())
/// # }
/// ```
///
/// The stream has file storage, retention by limits and discard policy `new`: a full stream rejects
/// messages, which then wait in the outbox. Deduplication survives a server restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventStream {
    pub(crate) name: String,
    pub(crate) prefix: SubjectPrefix,
    pub(crate) subjects: Vec<String>,
    pub(crate) duplicate_window: Duration,
    pub(crate) max_age: Duration,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) replicas: usize,
    pub(crate) provisioning: Provisioning,
    pub(crate) fenced: bool,
    pub(crate) shards: Option<u32>,
}

impl Default for EventStream {
    /// The stream `EVENTS` with the prefix `events`.
    fn default() -> Self {
        Self::new("EVENTS")
    }
}

impl EventStream {
    /// Describes the stream `name`. [`provision`](Self::provision) checks that the name has 1 to
    /// 255 characters of `[A-Za-z0-9_-]`. No request is sent.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            prefix: SubjectPrefix::default(),
            subjects: Vec::new(),
            duplicate_window: Duration::from_mins(10),
            max_age: Duration::from_hours(14 * 24),
            max_bytes: None,
            replicas: 1,
            provisioning: Provisioning::default(),
            fenced: false,
            shards: None,
        }
    }

    /// Sets the first tokens of the default subjects. Default `events`. Each stream of a server
    /// needs its own prefix, because a subject belongs to one stream only.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Prefix`] if [`SubjectPrefix::new`] rejects the prefix.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Result<Self, SubjectError> {
        self.prefix = SubjectPrefix::new(prefix)?;
        Ok(self)
    }

    /// Whether a stream with these subjects captures the default subjects of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn is_captured_by(&self, subjects: &[String]) -> bool {
        captures(subjects, &self.prefix.wildcard())
    }

    /// Adds a subject that the stream captures. The first added subject replaces the default
    /// `<prefix>.>`. Provisioning adds the fixed subjects of events.
    #[must_use]
    pub fn with_subject(mut self, subject: impl Into<String>) -> Self {
        self.subjects.push(subject.into());
        self
    }

    outbox_core::__setters! {
        /// Sets the duplicate window, within which the server drops a second message with the same
        /// id. The window should be longer than a relay restart, and at most the [maximum
        /// age](Self::with_max_age). Each id costs the server 200 to 260 bytes of memory. Default
        /// 10 min.
        fn with_duplicate_window(duplicate_window: Duration);
        /// Sets the maximum age, at which the server deletes messages; zero for never. Consumers
        /// must read messages within this time, and inboxes must keep message ids at least as long.
        /// The age is applied only when the stream is created. A shorter age of an existing stream
        /// is a [warning](crate::StreamReport::warnings). Default 14 days.
        fn with_max_age(max_age: Duration);
        /// Sets the maximum size of the stream in bytes. Set a limit in production: a full disk
        /// stops the whole server. The limit is applied only when the stream is created. Default:
        /// no limit.
        fn with_max_bytes(max_bytes: u64);
        /// Sets the number of replicas of the stream in a cluster, 1 to 5. Three replicas survive
        /// the loss of a server. The number is applied only when the stream is created. Fewer
        /// replicas of an existing stream are a [warning](crate::StreamReport::warnings). Default
        /// 1.
        fn with_replicas(replicas: usize);
        /// Sets whether [`provision`](Self::provision) may create and change the stream. Default
        /// [`Provisioning::Create`].
        fn with_provisioning(provisioning: Provisioning);
    }

    /// Enables strong mode: the server rejects messages that would be out of order. Default: off.
    ///
    /// In strong mode, sequenced messages go to one subject per aggregate,
    /// `<prefix>.<aggregate>.<aggregate id>`. Each message carries the stream sequence of the last
    /// message on its subject, so the server rejects a late message even after the duplicate
    /// window. Strong mode does not check unsequenced events and events with a fixed subject.
    ///
    /// * **Publisher permissions**: read the last message (`$JS.API.STREAM.MSG.GET.<stream>`), and
    ///   search the stream after a rejection (`$JS.API.STREAM.INFO.<stream>` and
    ///   `$JS.API.CONSUMER.{CREATE,INFO,MSG.NEXT,DELETE}.<stream>.>`). Without the search
    ///   permissions, a rejected message is
    ///   [`FailureClass::Unknown`](outbox_core::FailureClass::Unknown).
    /// * **Publisher cost**: after a restart, one request per aggregate. The publisher caches the
    ///   stream sequences of 65,536 aggregates.
    /// * **Consumers** receive all event types of each subscribed aggregate type. The inbox skips
    ///   event types without a handler as long as a consumer name has up to about 150 event types.
    ///   With more event types, the inbox cannot detect unhandled types, so unhandled messages are
    ///   redelivered.
    ///
    /// Either all publishers of a stream must use strong mode, or none.
    #[must_use]
    pub fn with_strong_mode(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Lets aggregates share subjects: `<prefix>.<aggregate>.shard-<n>.<event name>`, with `n`
    /// below `shards` (1 to 65,536). Default: one subject per aggregate,
    /// `<prefix>.<aggregate>.<aggregate id>.<event name>`.
    ///
    /// The server keeps every subject of a stream in memory, about 220 bytes each. Shards save this
    /// memory for streams with millions of aggregates, but a filter cannot select one aggregate.
    ///
    /// The number of shards may change at any time, in any deployment order. After disabling
    /// shards, new consumers with strategy `sequence` need the setting until no message is left on
    /// a shard. Shards exclude [strong mode](Self::with_strong_mode).
    #[must_use]
    pub fn with_subject_shards(mut self, shards: u32) -> Self {
        self.shards = Some(shards);
        self
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The age at which the server deletes messages; zero for never.
    #[must_use]
    pub fn max_age(&self) -> Duration {
        self.max_age
    }

    /// The first tokens of the default subjects.
    #[must_use]
    pub fn prefix(&self) -> &SubjectPrefix {
        &self.prefix
    }

    /// Connects to the servers of this stream and waits until a server is available. The call does
    /// not check the stream.
    ///
    /// While no server answers or the host name does not resolve, the call retries without limit,
    /// with pauses of 100 ms to 2 s. Each reason is logged once. The call uses
    /// [`connect_options`](crate::connect_options) and the user's
    /// [`inbox_prefix`](crate::inbox_prefix). The address may hold a password or a token; for other
    /// credentials or TLS settings, use [`connect_with`](Self::connect_with).
    ///
    /// # Errors
    ///
    /// [`ConnectError`] for a malformed address, rejected credentials or failed TLS.
    ///
    /// # Cancellation
    ///
    /// Dropping the future closes the connection if it is already open.
    pub async fn connect(&self, servers: impl AsRef<str>) -> Result<Client, ConnectError> {
        let servers = connect::parse(servers)?;
        let mut options = connect_options().name(format!("outbox {}", self.name));
        if let Some(prefix) = inbox_prefix_of(&servers) {
            options = options.custom_inbox_prefix(prefix);
        }
        connect::connect_when_up(servers, options).await
    }

    /// Connects as [`Self::connect`], but with the caller's options. Start from
    /// [`connect_options`](crate::connect_options). Do not set `retry_on_initial_connect`: with
    /// this option, the client retries rejected credentials without limit.
    ///
    /// # Errors
    ///
    /// The same as for [`Self::connect`].
    ///
    /// # Cancellation
    ///
    /// The same as for [`Self::connect`].
    pub async fn connect_with(
        &self,
        servers: impl AsRef<str>,
        options: ConnectOptions,
    ) -> Result<Client, ConnectError> {
        connect::connect_when_up(connect::parse(servers)?, options).await
    }

    /// Creates a publisher of this stream for a relay, without any request.
    /// [`Publisher::preflight`](outbox_core::Publisher::preflight) checks the stream.
    #[must_use]
    pub fn publisher(&self, client: Client) -> JetStreamPublisher {
        JetStreamPublisher::new(self.clone(), client, PublisherConfig::default())
    }

    /// Creates a subscriber of this stream for an inbox. No request is sent before
    /// [`Subscriber::subscribe`](outbox_core::Subscriber::subscribe).
    #[must_use]
    pub fn subscriber(&self, client: Client) -> JetStreamSubscriber {
        JetStreamSubscriber::new(self.clone(), client)
    }

    /// Returns the filters of a durable consumer for these events: sorted, and no filter covers
    /// another. With `whole_aggregates`, the filters also select the other events of each aggregate
    /// type. For a server before 2.10, one wider filter replaces them.
    #[must_use]
    pub fn consumer_filters<'a>(
        &self,
        events: impl IntoIterator<Item = &'a EventDescriptor>,
        whole_aggregates: bool,
    ) -> Vec<String> {
        let events = events.into_iter();
        without_covered(events.flat_map(|event| self.filters(event, whole_aggregates)))
    }

    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        if !is_plain_name(&self.name) {
            Some("the name must be 1 to 255 characters of `[A-Za-z0-9_-]`")
        } else if !self.max_age.is_zero() && self.duplicate_window > self.max_age {
            Some("`duplicate_window` must not be above `max_age`")
        } else if !(1..=5).contains(&self.replicas) {
            Some("`replicas` must be 1 to 5")
        } else if self
            .shards
            .is_some_and(|shards| !(1..=SHARDS_MAX).contains(&shards))
        {
            Some("subject shards must be 1 to 65,536")
        } else if self.shards.is_some() && self.fenced {
            Some("strong mode needs a subject per aggregate, so there must be no subject shards")
        } else {
            None
        }
    }

    pub(crate) fn subject(&self, message: &Message) -> Result<String, SubjectError> {
        match self.shards {
            Some(shards) if message.subject.is_none() => {
                let shard = shard_token(&message.aggregate, shards);
                Ok(self.prefix.subject_at(message, &shard))
            }
            _ => self.prefix.subject(message),
        }
    }

    /// Describes the layout of message subjects as a stable text.
    pub(crate) fn subjects_of_messages(&self) -> String {
        let prefix = &self.prefix;
        match (self.fenced, self.shards) {
            (true, _) => format!("{prefix}.{{aggregate}}.{{id}}, strong mode"),
            (false, Some(shards)) => format!("{prefix}.{{aggregate}}.{{shard of {shards}}}.{{event}}"),
            (false, None) => format!("{prefix}.{{aggregate}}.{{id}}.{{event}}"),
        }
    }

    pub(crate) fn filters(
        &self,
        event: &EventDescriptor,
        whole_aggregates: bool,
    ) -> impl Iterator<Item = String> {
        let fenced = self.fenced && !event.is_everything();
        let fenced = fenced.then(|| self.prefix.fenced_filter(event)).flatten();
        let filter = match event.subject {
            None if whole_aggregates && !event.is_everything() => self.prefix.aggregate_filter(event),
            _ => self.prefix.filter(event),
        };
        std::iter::once(filter).chain(fenced)
    }
}
