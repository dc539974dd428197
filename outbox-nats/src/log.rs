//! Lists the messages on the stream without reading their payloads.
//!
//! An ephemeral consumer receives headers only, unacknowledged, in batches. Invariants: reading ends at the stream sequence that was the last when it began, so
//! it ends while others publish. An incomplete answer is an error.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use futures_util::StreamExt as _;
use outbox_core::{FailureClass, MessageId, PublishError, StreamLog};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::timeout;
use uuid::Uuid;

use crate::connection::Live;
use crate::provision::REQUEST_TIMEOUT;
use crate::publisher::JetStreamPublisher;

/// Messages per batch. Each one takes its headers, about half a kilobyte.
const BATCH: usize = 1_000;

/// Empty batches before reading fails. A batch is empty if its messages were deleted meanwhile.
const EMPTY_MAX: u32 = 3;

/// Time after which the server removes the consumer by itself.
const ABANDONED: Duration = Duration::from_secs(30);

/// Reads over the publisher's connection; 100,000 messages take about a second. Ends within 5 s for each batch of 1,000.
impl StreamLog for JetStreamPublisher {
    async fn message_ids(&self, from: OffsetDateTime) -> Result<HashSet<MessageId>, PublishError> {
        self.connected(async |live| {
            let mut ids = HashSet::new();
            let see = |_, headers: &HeaderMap| {
                ids.extend(message_id(headers));
                true
            };
            read(live, &self.stream().name, None, from, see).await?;
            Ok(ids)
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

/// Calls `see` with stream sequence and headers of each message stored at `from` or later, in the order of the stream, until it returns `false`. With a
/// `subject`, only messages on it.
pub(crate) async fn read(
    live: &Live,
    stream: &str,
    subject: Option<&str>,
    from: OffsetDateTime,
    mut see: impl FnMut(u64, &HeaderMap) -> bool,
) -> Result<(), PublishError> {
    let silent = |what: &str| {
        PublishError::new(
            FailureClass::Unknown,
            format!("stream `{stream}` cannot be read: {what}"),
        )
    };
    let handle = live
        .context
        .get_stream(stream)
        .await
        .map_err(|error| silent("no answer about it").with_source(error))?;
    let last = handle.cached_info().state.last_sequence;
    let config = pull::Config {
        deliver_policy: since(from).ok_or_else(|| silent("the start time is out of range"))?,
        ack_policy: AckPolicy::None,
        filter_subject: subject.unwrap_or_default().to_owned(),
        headers_only: true,
        inactive_threshold: ABANDONED,
        memory_storage: true,
        ..pull::Config::default()
    };
    let mut consumer = handle
        .create_consumer(config)
        .await
        .map_err(|error| silent("no consumer could be made").with_source(error))?;
    let mut empty = 0;
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
            let wanted = see(
                info.stream_sequence,
                message.headers.as_ref().unwrap_or(&HeaderMap::new()),
            );
            if !wanted || info.stream_sequence >= last {
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
    let _ = handle.delete_consumer(&name).await;
    Ok(())
}

/// Where reading starts. Converted through text, because the type of a time in async-nats depends on the features of the whole build.
fn since(from: OffsetDateTime) -> Option<DeliverPolicy> {
    let time = from.to_offset(time::UtcOffset::UTC).format(&Rfc3339).ok()?;
    let policy = serde_json::json!({ "deliver_policy": "by_start_time", "opt_start_time": time });
    serde_json::from_value(policy).ok()
}
