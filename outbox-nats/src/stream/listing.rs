//! Lists the messages on the stream without reading their payloads, with an ephemeral consumer.
//!
//! Invariants: reading ends at the stream sequence that was the stream's last at the start of the
//! reading. An incomplete answer is an error.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::{DeliverPolicy, Info, PullConsumer, pull};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{RetentionPolicy, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, HeaderMap};
use futures_util::StreamExt as _;
use outbox_core::{
    FailureClass, Message, MessageId, PublishError, StreamExtent, StreamLog, StreamReader, StreamSearch,
    StreamedMessage,
};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::connect::connection::Live;
use crate::publish::JetStreamPublisher;
use crate::stream::headers;
use crate::stream::message;
use crate::stream::provision::REQUEST_TIMEOUT;
use crate::subscribe::pull::connects;

/// Messages per batch. A message has about half a kilobyte of headers.
const BATCH: usize = 1_000;

const CONNECTION_CHECK: Duration = Duration::from_millis(100);

/// Number of messages after which a listing without a JetStream consumer tries again to create one.
pub(crate) const RAW_MESSAGES: usize = 1_000;
pub(crate) const RAW_BYTES: usize = 32 << 20;

/// Maximum tolerated clock difference between database and broker.
pub(crate) const CLOCKS_APART: Duration = Duration::from_hours(1);

/// Inactivity after which the server removes the consumer. Longer than the pause between batches.
const ABANDONED: Duration = Duration::from_secs(10);

/// Reads over the publisher's connection, up to 5 s for each batch of 1,000. Only retention Limits
/// is accepted: with other retention, acknowledged messages are deleted and would look lost.
impl StreamLog for JetStreamPublisher {
    async fn message_ids(&self, from: OffsetDateTime) -> Result<HashSet<MessageId>, PublishError> {
        self.connected(async |live| {
            let mut ids = HashSet::new();
            let see = |_, _, headers: &HeaderMap| {
                ids.extend(message_id(headers));
                true
            };
            let log = Log::open(live, &self.stream().name).await?;
            log.keeps_what_is_read()?;
            log.read(None, Start::At(from), see).await?;
            Ok(ids)
        })
        .await
    }
}

impl StreamSearch for JetStreamPublisher {
    async fn locate(&self, message: &Message) -> Result<Option<u64>, PublishError> {
        let subject = self.subject_of(message)?;
        self.connected(async |live| {
            let mut found = None;
            let see = |stream_sequence, _, headers: &HeaderMap| {
                if message_id(headers) == Some(message.id) {
                    found = Some(stream_sequence);
                }
                found.is_none()
            };
            let log = Log::open(live, &self.stream().name).await?;
            log.keeps_what_is_read()?;
            log.read(Some(&subject), Start::At(message.created_at - CLOCKS_APART), see)
                .await?;
            Ok(found)
        })
        .await
    }
}

impl StreamReader for JetStreamPublisher {
    async fn read(
        &self,
        from: OffsetDateTime,
        mut see: impl FnMut(StreamedMessage) -> bool + Send,
    ) -> Result<StreamExtent, PublishError> {
        self.connected(async |live| {
            let log = Log::open(live, &self.stream().name).await?;
            log.keeps_what_is_read()?;
            let mut extent = log.extent();
            let see = |stream_sequence, stored_at, headers: &HeaderMap| match StreamedMessage::decode(
                stream_sequence,
                stored_at,
                &headers::decode(headers),
            ) {
                Some(message) => see(message),
                None => {
                    extent.foreign += 1;
                    true
                }
            };
            log.read(None, Start::At(from), see).await?;
            Ok(extent)
        })
        .await
    }
}

pub(crate) fn message_id(headers: &HeaderMap) -> Option<MessageId> {
    headers.get("ce-id")?;
    let id = headers.get(NATS_MESSAGE_ID)?.as_str();
    id.parse::<Uuid>().ok().map(MessageId::from)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    At(OffsetDateTime),
    /// Reading starts with the first message after this stream sequence.
    Behind(u64),
}

pub(crate) struct Log {
    handle: Stream,
    name: String,
    client: Client,
    context: Context,
}

impl Log {
    pub(crate) async fn open(live: &Live, stream: &str) -> Result<Self, PublishError> {
        let handle = live
            .context
            .get_stream(stream)
            .await
            .map_err(|error| silent(stream, "no answer about it").with_source(error))?;
        Ok(Self {
            handle,
            name: stream.to_owned(),
            client: live.client.clone(),
            context: live.context.clone(),
        })
    }

    pub(crate) fn last(&self) -> u64 {
        self.handle.cached_info().state.last_sequence
    }

    pub(crate) fn extent(&self) -> StreamExtent {
        let state = &self.handle.cached_info().state;
        let first_stored_at = SystemTime::from(state.first_timestamp).into();
        StreamExtent {
            first_stream_sequence: state.first_sequence,
            first_stored_at: (state.messages > 0).then_some(first_stored_at),
            last_stream_sequence: state.last_sequence,
            foreign: 0,
        }
    }

    pub(crate) fn keeps_what_is_read(&self) -> Result<(), PublishError> {
        let retention = self.handle.cached_info().config.retention;
        if retention == RetentionPolicy::Limits {
            return Ok(());
        }
        let context = format!(
            "stream `{}` cannot be read without changing it: retention {retention:?} deletes acknowledged messages; retention must be Limits",
            self.name
        );
        Err(PublishError::new(FailureClass::Configuration, context))
    }

    /// Creation time of the stream. A recreated stream of the same name assigns its stream
    /// sequences again.
    pub(crate) fn made_at(&self) -> String {
        format!("{:?}", self.handle.cached_info().created)
    }

    /// Calls `see` with stream sequence, storage time and headers from `start` on, in stream order,
    /// until `see` returns `false`. Returns whether `see` has seen all messages. An interrupted
    /// batch is continued with single requests, because async-nats closes the connection at headers
    /// that it cannot parse.
    pub(crate) async fn read(
        &self,
        subject: Option<&str>,
        mut start: Start,
        mut see: impl FnMut(u64, OffsetDateTime, &HeaderMap) -> bool,
    ) -> Result<bool, PublishError> {
        loop {
            if matches!(start, Start::Behind(sequence) if sequence >= self.last()) {
                return Ok(true);
            }
            let behind = match self.read_batches(subject, start, &mut see).await? {
                Reading::Ended(complete) => return Ok(complete),
                Reading::BrokeOff { behind } => behind,
            };
            match self.read_raw(subject, behind, &mut see).await? {
                Reading::Ended(complete) => return Ok(complete),
                Reading::BrokeOff { behind } => start = Start::Behind(behind),
            }
        }
    }

    async fn read_batches(
        &self,
        subject: Option<&str>,
        start: Start,
        see: &mut impl FnMut(u64, OffsetDateTime, &HeaderMap) -> bool,
    ) -> Result<Reading, PublishError> {
        let silent = |what: &str| silent(&self.name, what);
        let policy = start
            .policy()
            .ok_or_else(|| silent("the start time is out of range"))?;
        let connection = connects(&self.client);
        let consumer = self.consumer(policy, subject).await?;
        let info = consumer.cached_info();
        let mut pending = info.num_pending;
        let mut reading = Reading::BrokeOff {
            behind: info.delivered.stream_sequence,
        };
        'reading: while pending > 0 {
            let Ok(mut batch) = consumer.fetch().max_messages(BATCH).messages().await else {
                break;
            };
            let mut received = false;
            while let Some(message) = self.next_of(&mut batch, connection).await {
                let info = message
                    .info()
                    .map_err(|error| silent("a delivery is malformed").with_source(error))?;
                received = true;
                pending = info.pending;
                let empty = HeaderMap::new();
                let headers = message.headers.as_ref().unwrap_or(&empty);
                let complete = see(
                    info.stream_sequence,
                    SystemTime::from(info.published).into(),
                    headers,
                );
                reading = Reading::BrokeOff {
                    behind: info.stream_sequence,
                };
                if !complete || info.stream_sequence >= self.last() {
                    reading = Reading::Ended(complete);
                    break 'reading;
                }
            }
            if !received {
                break;
            }
        }
        if pending == 0 {
            reading = Reading::Ended(true);
        }
        Ok(reading)
    }

    /// The server chooses the name and removes the consumer, so a reader needs no permission to
    /// create durable consumers or to delete consumers.
    async fn consumer(
        &self,
        policy: DeliverPolicy,
        subject: Option<&str>,
    ) -> Result<PullConsumer, PublishError> {
        let failed = |error| silent(&self.name, "no consumer could be created").with_source(error);
        let mut config = serde_json::to_value(policy).map_err(|error| failed(error.into()))?;
        config["ack_policy"] = "none".into();
        config["replay_policy"] = "instant".into();
        config["headers_only"] = true.into();
        config["mem_storage"] = true.into();
        config["inactive_threshold"] = json!(ABANDONED.as_nanos());
        if let Some(subject) = subject {
            config["filter_subject"] = subject.into();
        }
        let request = json!({ "stream_name": self.name, "config": config });
        let answer: Response<Info> = self
            .context
            .request(format!("CONSUMER.CREATE.{}", self.name), &request)
            .await
            .map_err(|error| failed(error.into()))?;
        match answer {
            Response::Ok(info) => {
                let consumer = self.handle.get_consumer(&info.name).await;
                consumer.map_err(failed)
            }
            Response::Err { error } => Err(failed(Box::new(error))),
        }
    }

    async fn next_of(&self, batch: &mut pull::Batch, connection: u64) -> Option<jetstream::Message> {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        while Instant::now() < deadline && connects(&self.client) == connection {
            if let Ok(next) = timeout(CONNECTION_CHECK, batch.next()).await {
                return next?.ok();
            }
        }
        None
    }

    async fn read_raw(
        &self,
        subject: Option<&str>,
        mut behind: u64,
        see: &mut impl FnMut(u64, OffsetDateTime, &HeaderMap) -> bool,
    ) -> Result<Reading, PublishError> {
        let (mut messages, mut bytes) = (0, 0);
        while messages < RAW_MESSAGES && bytes < RAW_BYTES {
            let next = message::next(&self.context, &self.name, behind + 1, subject.unwrap_or(">")).await;
            let next = next.map_err(|error| {
                silent(&self.name, &format!("no answer about the message after stream sequence {behind}; grant this user the permission to publish on `$JS.API.STREAM.MSG.GET.{}`", self.name))
                    .with_source(error)
            })?;
            let Some(message) = next.filter(|message| message.stream_sequence <= self.last()) else {
                return Ok(Reading::Ended(true));
            };
            behind = message.stream_sequence;
            messages += 1;
            bytes += message.payload.len();
            if message.breaks_client {
                tracing::warn!(
                    stream = self.name,
                    stream_sequence = behind,
                    "a message has malformed headers; these headers are left out"
                );
            }
            if !see(behind, message.stored_at, &message.headers) {
                return Ok(Reading::Ended(false));
            }
            if behind >= self.last() {
                return Ok(Reading::Ended(true));
            }
        }
        Ok(Reading::BrokeOff { behind })
    }
}

enum Reading {
    /// The reading has ended; `false` if the callback `see` has stopped it early.
    Ended(bool),
    BrokeOff {
        behind: u64,
    },
}

impl Start {
    fn policy(self) -> Option<DeliverPolicy> {
        match self {
            Self::At(time) => since(time),
            Self::Behind(sequence) => Some(DeliverPolicy::ByStartSequence {
                start_sequence: sequence + 1,
            }),
        }
    }
}

fn silent(stream: &str, what: &str) -> PublishError {
    PublishError::new(
        FailureClass::Unknown,
        format!("stream `{stream}` cannot be read: {what}"),
    )
}

/// The start policy of a consumer from a time on; `None` if the time is out of range. The time is
/// converted through text, because the time type of async-nats depends on the features of the whole
/// build.
pub(crate) fn since(from: OffsetDateTime) -> Option<DeliverPolicy> {
    let time = from.to_offset(time::UtcOffset::UTC).format(&Rfc3339).ok()?;
    let policy = serde_json::json!({ "deliver_policy": "by_start_time", "opt_start_time": time });
    serde_json::from_value(policy).ok()
}
