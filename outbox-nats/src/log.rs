//! Lists the messages on the stream without reading their payloads.
//!
//! An ephemeral consumer receives headers only, unacknowledged, in batches. Invariants: reading ends at the stream sequence that was the last when it began, so
//! it ends while others publish. An incomplete answer is an error.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{RetentionPolicy, Stream};
use futures_util::StreamExt as _;
use outbox_core::{
    FailureClass, Message, MessageId, PublishError, StreamExtent, StreamLog, StreamReader, StreamSearch,
    StreamedMessage,
};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::timeout;
use uuid::Uuid;

use crate::connection::Live;
use crate::headers;
use crate::provision::REQUEST_TIMEOUT;
use crate::publisher::JetStreamPublisher;

/// Messages per batch. Each one takes its headers, about half a kilobyte.
const BATCH: usize = 1_000;

/// Empty batches before reading fails. A batch is empty if its messages were deleted meanwhile.
const EMPTY_MAX: u32 = 3;

/// Largest difference between the clocks of database and broker that is allowed for.
pub(crate) const CLOCKS_APART: Duration = Duration::from_hours(1);

/// Time after which the server removes the consumer by itself.
const ABANDONED: Duration = Duration::from_secs(30);

/// Reads over the publisher's connection; 100,000 messages take about a second. Ends within 5 s for each batch of 1,000. A stream whose retention is not Limits is
/// refused: it deletes what was acknowledged, so what it does not hold any more would look lost.
impl StreamLog for JetStreamPublisher {
    async fn message_ids(&self, from: OffsetDateTime) -> Result<HashSet<MessageId>, PublishError> {
        self.connected(async |live| {
            let mut ids = HashSet::new();
            let see = |_, headers: &HeaderMap| {
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

/// Reads the message's subject as the log is read. A consumer in memory receives the headers, so nothing is taken from the stream; one whose retention is not
/// Limits is refused.
impl StreamSearch for JetStreamPublisher {
    async fn locate(&self, message: &Message) -> Result<Option<u64>, PublishError> {
        let subject = self.subject_of(message)?;
        self.connected(async |live| {
            let mut found = None;
            let see = |stream_sequence, headers: &HeaderMap| {
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

/// Reads as the log is read, for any number of messages. A stream whose retention is not Limits is refused.
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
            log.read_with_times(None, Start::At(from), see).await?;
            Ok(extent)
        })
        .await
    }
}

/// The id of a message that an outbox has published; `None` for others.
pub(crate) fn message_id(headers: &HeaderMap) -> Option<MessageId> {
    headers.get("ce-id")?;
    let id = headers.get(NATS_MESSAGE_ID)?.as_str();
    id.parse::<Uuid>().ok().map(MessageId::from)
}

/// Where reading starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the first message that was stored at this time or later.
    At(OffsetDateTime),
    /// With the first message behind this stream sequence.
    Behind(u64),
}

/// A stream as it was when it was opened for reading.
pub(crate) struct Log {
    handle: Stream,
    name: String,
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
        })
    }

    /// The last stream sequence at the time of opening. Reading ends there.
    pub(crate) fn last(&self) -> u64 {
        self.handle.cached_info().state.last_sequence
    }

    /// What the stream held at the time of opening.
    pub(crate) fn extent(&self) -> StreamExtent {
        let state = &self.handle.cached_info().state;
        // The type of a time in async-nats depends on the features of the whole build; both become this one.
        let first_stored_at = SystemTime::from(state.first_timestamp).into();
        StreamExtent {
            first_stream_sequence: state.first_sequence,
            first_stored_at: (state.messages > 0).then_some(first_stored_at),
            last_stream_sequence: state.last_sequence,
            foreign: 0,
        }
    }

    /// Refuses a stream that a reader would change: one that deletes what its consumers have acknowledged.
    pub(crate) fn keeps_what_is_read(&self) -> Result<(), PublishError> {
        let retention = self.handle.cached_info().config.retention;
        if retention == RetentionPolicy::Limits {
            return Ok(());
        }
        let context = format!(
            "stream `{}` cannot be read without changing it: it has retention {retention:?}, and deletes what a reader has taken; needed is Limits",
            self.name
        );
        Err(PublishError::new(FailureClass::Configuration, context))
    }

    /// When the stream was made. A stream of the same name that is made anew gives its stream sequences again.
    pub(crate) fn made_at(&self) -> String {
        format!("{:?}", self.handle.cached_info().created)
    }

    /// Calls `see` with stream sequence and headers of each message from `start` on, in the order of the stream, until it returns `false`. With a `subject`,
    /// only messages on it. Returns whether `see` has seen all of them.
    pub(crate) async fn read(
        &self,
        subject: Option<&str>,
        start: Start,
        mut see: impl FnMut(u64, &HeaderMap) -> bool,
    ) -> Result<bool, PublishError> {
        self.read_with_times(subject, start, |sequence, _, headers| see(sequence, headers))
            .await
    }

    /// As [`Self::read`], with the time at which the stream stored each message.
    pub(crate) async fn read_with_times(
        &self,
        subject: Option<&str>,
        start: Start,
        mut see: impl FnMut(u64, OffsetDateTime, &HeaderMap) -> bool,
    ) -> Result<bool, PublishError> {
        let silent = |what: &str| silent(&self.name, what);
        let last = self.last();
        if matches!(start, Start::Behind(sequence) if sequence >= last) {
            return Ok(true);
        }
        let config = pull::Config {
            deliver_policy: start
                .policy()
                .ok_or_else(|| silent("the start time is out of range"))?,
            ack_policy: AckPolicy::None,
            filter_subject: subject.unwrap_or_default().to_owned(),
            headers_only: true,
            inactive_threshold: ABANDONED,
            memory_storage: true,
            ..pull::Config::default()
        };
        let mut consumer = self
            .handle
            .create_consumer(config)
            .await
            .map_err(|error| silent("no consumer could be made").with_source(error))?;
        let mut empty = 0;
        let mut complete = true;
        let mut pending = consumer.cached_info().num_pending;
        'reading: while pending > 0 {
            let mut batch = consumer
                .fetch()
                .max_messages(BATCH)
                .messages()
                .await
                .map_err(|error| silent("no batch could be asked for").with_source(error))?;
            let mut received = false;
            while let Some(message) = timeout(REQUEST_TIMEOUT, batch.next())
                .await
                .map_err(|_| silent("the server went silent"))?
            {
                let message = message.map_err(|error| silent("a batch broke off").with_source(error))?;
                let info = message
                    .info()
                    .map_err(|error| silent("a delivery is malformed").with_source(error))?;
                received = true;
                pending = info.pending;
                complete = see(
                    info.stream_sequence,
                    SystemTime::from(info.published).into(),
                    message.headers.as_ref().unwrap_or(&HeaderMap::new()),
                );
                if !complete || info.stream_sequence >= last {
                    break 'reading;
                }
            }
            if !received {
                empty += 1;
                if empty > EMPTY_MAX {
                    return Err(silent("messages are pending and none arrives"));
                }
                pending = consumer
                    .info()
                    .await
                    .map_err(|error| silent("no answer about the consumer").with_source(error))?
                    .num_pending;
            }
        }
        // If this fails, the server removes the consumer a little later.
        let name = consumer.cached_info().name.clone();
        let _ = self.handle.delete_consumer(&name).await;
        Ok(complete)
    }
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

/// The policy for everything that was stored at a time or later; `None` if the time is out of range. Converted through text, because the type of a time in async-nats depends on the features of the whole build.
pub(crate) fn since(from: OffsetDateTime) -> Option<DeliverPolicy> {
    let time = from.to_offset(time::UtcOffset::UTC).format(&Rfc3339).ok()?;
    let policy = serde_json::json!({ "deliver_policy": "by_start_time", "opt_start_time": time });
    serde_json::from_value(policy).ok()
}
