//! The one description of the stream that events travel on.
//!
//! [`EventStream::provision`] (module `provision`), [`EventStream::publisher`] and [`EventStream::subscriber`] all take name, prefix and mode from here. No other constructor exists, so the three cannot disagree.

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

use crate::connect::address::Servers;
use crate::connect::{self, ConnectError, connect_options, inbox_prefix_of};
use crate::publish::{JetStreamPublisher, PublisherConfig};
use crate::stream::subject::{
    SubjectError, SubjectPrefix, captures, is_plain_name, shard_token, without_covered,
};
use crate::subscribe::JetStreamSubscriber;

/// Most shards of [`EventStream::with_subject_shards`]. More would cost as much memory as they save.
const SHARDS_MAX: u32 = 65_536;

/// Whether this process may create and change streams and consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Provisioning {
    /// Create missing streams, and add missing subjects and settings.
    #[default]
    Create,
    /// Change nothing. Whatever is missing is an error that says how to create it. For servers where only operators may do so.
    VerifyOnly,
}

/// The stream that events travel on: its name, its subjects, its limits, and whether it is in strong mode.
///
/// It is described once. Everything that has to agree with it is made from it:
///
/// | for | call |
/// |---|---|
/// | a connection | [`connect`](Self::connect), or [`connect`](fn@crate::connect) for credentials of other kinds |
/// | the stream itself, created or checked at start | [`provision`](Self::provision), [`provision_for`](Self::provision_for) |
/// | the relay | [`publisher`](Self::publisher) |
/// | the inbox | [`subscriber`](Self::subscriber) |
///
/// Processes that share a stream should build this value in one function that they all link.
///
/// ```no_run
/// # async fn demo(client: outbox_nats::async_nats::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_nats::EventStream;
///
/// let shop = EventStream::new("SHOP").with_prefix("shop")?.with_max_bytes(10 << 30).with_replicas(3);
/// shop.provision(&client).await?;
/// let (publisher, subscriber) = (shop.publisher(client.clone()), shop.subscriber(client));
/// # Ok(())
/// # }
/// ```
///
/// Storage is file, retention by limits, and discard policy `new`. File storage and retention by limits let deduplication survive a restart of the server.
/// With discard policy `new` a full stream refuses messages, which then wait in the outbox; it never drops unread ones.
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
    /// A stream with this name: 1 to 255 characters of `[A-Za-z0-9_-]`, which [`provision`](Self::provision) checks. Nothing is sent.
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

    /// Sets the first tokens of the default subjects. Default `events`.
    ///
    /// Two streams of a server need different prefixes, because a subject belongs to one stream only.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Prefix`] as for [`SubjectPrefix::new`].
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

    /// Adds a subject that the stream captures. With the first one, `<prefix>.>` is no longer implied. Fixed subjects of events are added when the stream is
    /// provisioned. Default: `<prefix>.>`.
    #[must_use]
    pub fn with_subject(mut self, subject: impl Into<String>) -> Self {
        self.subjects.push(subject.into());
        self
    }

    outbox_core::__setters! {
        /// Sets the time within which the server drops a second message with the same id. It should outlast the restart of a relay; each id costs the
        /// server 200 to 260 bytes of memory. Not above the [maximum age](Self::with_max_age). Default 10 min.
        fn with_duplicate_window(duplicate_window: Duration);
        /// Sets the age at which messages are deleted; zero for never. Consumers must have read them by then, and inboxes must remember ids at least as
        /// long. Only for creating; a shorter age of an existing stream is a [warning](crate::StreamReport::warnings). Default 14 days.
        fn with_max_age(max_age: Duration);
        /// Sets the most bytes on the stream. Set it in production: a full disk stops the whole server, a full stream only its publishers. Only for
        /// creating. Default: no limit.
        fn with_max_bytes(max_bytes: u64);
        /// Sets the copies in a cluster, 1 to 5. Three survive the loss of a server. Only for creating; fewer copies of an existing stream are a
        /// [warning](crate::StreamReport::warnings). Default 1.
        fn with_replicas(replicas: usize);
        /// Sets whether [`provision`](Self::provision) may create and change the stream. Consumers are a right of their own,
        /// [`SubscriberConfig::provisioning`](crate::SubscriberConfig::provisioning). Default [`Provisioning::Create`].
        fn with_provisioning(provisioning: Provisioning);
    }

    /// Turns strong mode on: the server itself refuses messages that would stand out of order. Default: off.
    ///
    /// Sequenced messages then go to one subject per aggregate, `<prefix>.<aggregate>.<aggregate id>`, without the event's name, and each says which
    /// stream sequence the last one there has. A message that a paused relay left on the wire is refused even if it arrives after the
    /// duplicate window. Unsequenced events and events with a fixed subject are not fenced; they keep their subjects.
    ///
    /// * **The publisher** needs permissions: to read the last message (`$JS.API.STREAM.MSG.GET.<stream>`), and to search the stream after a refusal
    ///   (`$JS.API.STREAM.INFO.<stream>` and `$JS.API.CONSUMER.{CREATE,INFO,MSG.NEXT,DELETE}.<stream>.>`). Without the second, a refused message is
    ///   [`FailureClass::Unknown`](outbox_core::FailureClass::Unknown). After a restart each aggregate costs one look-up more; stream sequences of 65,536
    ///   aggregates are remembered.
    /// * **Consumers** receive all event types of each subscribed aggregate type, because they share a subject. The inbox skips those that nobody has asked
    ///   for, as long as a consumer name has up to about 150 event types; beyond, everything that is sent counts as asked for, and goes back.
    ///   Messages on the default subjects are received too, so a stream may have been published to in both ways.
    ///
    /// All publishers of a stream must have the same mode.
    #[must_use]
    pub fn with_strong_mode(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Lets aggregates share subjects: `<prefix>.<aggregate>.shard-<n>.<event name>`, with `n` below `shards` (1 to 65,536, which
    /// [`provision`](Self::provision) and the relay's start check). Default: each aggregate has its own,
    /// `<prefix>.<aggregate>.<aggregate id>.<event name>`.
    ///
    /// The server keeps every subject of a stream in memory, about 220 bytes each (measured in `docs/performance.md`). With millions of aggregates on the
    /// stream that is most of its memory; with shards it is next to nothing. In return, a filter on the server can no longer select one aggregate. Handlers
    /// notice nothing: their filters select event types, and order and deduplication go by the headers.
    ///
    /// It may be changed at any time, in any order of deployment: consumers take both layouts. After it was turned off, keep it in the programs of new consumers
    /// with strategy `sequence` until the stream has no message on a shard any more: they cannot ask where such an aggregate begins. Not together with
    /// [strong mode](Self::with_strong_mode), which needs a subject per aggregate.
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

    /// The age at which messages are deleted; zero for never.
    #[must_use]
    pub fn max_age(&self) -> Duration {
        self.max_age
    }

    /// The first tokens of the default subjects.
    #[must_use]
    pub fn prefix(&self) -> &SubjectPrefix {
        &self.prefix
    }

    /// Connects to the servers that hold this stream, and waits for them. Nothing is asked of the stream.
    ///
    /// While no server answers, or its name is not known yet, it tries again, without end: after 100 ms, then after longer pauses of up to 2 s. It says so
    /// in the log, once for each reason. Refused credentials are reported at once.
    ///
    /// It uses [`connect_options`](crate::connect_options), for servers that want nothing but an address, which may hold a password or a token, and the [`inbox_prefix`](crate::inbox_prefix) of the user. For other credentials, or TLS
    /// settings, use [`connect_with`](Self::connect_with).
    ///
    /// # Errors
    ///
    /// [`ConnectError`] for what waiting does not mend: a malformed address, refused credentials, TLS that fails.
    ///
    /// # Cancellation
    ///
    /// Dropping the future closes the connection if it was open already.
    pub async fn connect(&self, servers: impl Servers) -> Result<Client, ConnectError> {
        let servers = connect::parse(servers)?;
        let mut options = connect_options().name(format!("outbox {}", self.name));
        if let Some(prefix) = inbox_prefix_of(&servers) {
            options = options.custom_inbox_prefix(prefix);
        }
        self.connect_with(servers, options).await
    }

    /// As [`Self::connect`], with options of your own, which best begin as [`connect_options`](crate::connect_options).
    ///
    /// Do not set `retry_on_initial_connect`: with it this call returns before there is a connection, and refused credentials are retried without end.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    ///
    /// # Cancellation
    ///
    /// As [`Self::connect`].
    pub async fn connect_with(
        &self,
        servers: impl Servers,
        options: ConnectOptions,
    ) -> Result<Client, ConnectError> {
        connect::connect_when_up(connect::parse(servers)?, options).await
    }

    /// A publisher of this stream over a connection, for a relay. Nothing is sent, so the stream may still be missing; check it with
    /// [`provision`](Self::provision) or [`Publisher::preflight`](outbox_core::Publisher::preflight).
    #[must_use]
    pub fn publisher(&self, client: Client) -> JetStreamPublisher {
        JetStreamPublisher::new(self.clone(), client, PublisherConfig::default())
    }

    /// A subscriber of this stream over a connection, for an inbox. Nothing is sent until [`Subscriber::subscribe`](outbox_core::Subscriber::subscribe).
    #[must_use]
    pub fn subscriber(&self, client: Client) -> JetStreamSubscriber {
        JetStreamSubscriber::new(self.clone(), client)
    }

    /// The filters of a durable consumer that asks for these events, and with `whole_aggregates` for the others of their aggregate types as well: sorted, and none
    /// covers another.
    ///
    /// A [`JetStreamSubscriber`](crate::JetStreamSubscriber) makes a durable with them, and gives one that exists those that it lacks. So a durable may have more,
    /// and with a server before 2.10 it has one that is wider.
    #[must_use]
    pub fn consumer_filters<'a>(
        &self,
        events: impl IntoIterator<Item = &'a EventDescriptor>,
        whole_aggregates: bool,
    ) -> Vec<String> {
        let events = events.into_iter();
        without_covered(events.flat_map(|event| self.filters(event, whole_aggregates)))
    }

    /// The reason why this description contradicts itself.
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

    /// The subject on which a message that is not fenced is published.
    pub(crate) fn subject(&self, message: &Message) -> Result<String, SubjectError> {
        match self.shards {
            Some(shards) if message.subject.is_none() => {
                let shard = shard_token(&message.aggregate, shards);
                Ok(self.prefix.subject_at(message, &shard))
            }
            _ => self.prefix.subject(message),
        }
    }

    /// How [`Self::subject`] and strong mode build subjects, as a stable text.
    pub(crate) fn subjects_of_messages(&self) -> String {
        let prefix = &self.prefix;
        match (self.fenced, self.shards) {
            (true, _) => format!("{prefix}.{{aggregate}}.{{id}}, strong mode"),
            (false, Some(shards)) => format!("{prefix}.{{aggregate}}.{{shard of {shards}}}.{{event}}"),
            (false, None) => format!("{prefix}.{{aggregate}}.{{id}}.{{event}}"),
        }
    }

    /// The filters that select an event, and with `whole_aggregates` the others of its aggregate type.
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
