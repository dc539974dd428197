//! Publishing to JetStream with async-nats alone: what the relay is compared to.
//!
//! The same stream settings, subjects and payload sizes, and a message id, as whoever wants deduplication must send it.

use std::collections::VecDeque;
use std::future::IntoFuture as _;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{Context, ContextBuilder, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use outbox_core::{NewMessage, codec};
use time::OffsetDateTime;
use tokio_util::bytes::Bytes;
use uuid::Uuid;

use crate::Result;
use crate::load::{AGGREGATES, Moved, PAYLOAD_BYTES, account_id, subject};
use crate::servers::{Servers, Stream};

/// Most unacknowledged messages.
pub(crate) const WINDOW: usize = 1024;

/// What is sent beside the message id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Extra {
    Nothing,
    /// The headers of our messages.
    OurHeaders,
}

/// A context with room for the window.
pub(crate) fn context(client: async_nats::Client) -> Context {
    ContextBuilder::new()
        .timeout(Duration::from_secs(30))
        .ack_timeout(Duration::from_secs(30))
        .max_ack_inflight(2 * WINDOW)
        .build(client)
}

/// Publishes `messages` messages to a stream of its own and returns messages per second.
pub(crate) async fn rate(servers: &Servers, messages: u64, window: usize, extra: Extra) -> Result<f64> {
    let stream = servers.stream().await?;
    let context = context(async_nats::connect(stream.nats_url.as_str()).await?);
    let payload = Bytes::from(vec![b'n'; usize::try_from(PAYLOAD_BYTES)?]);
    let subjects: Vec<async_nats::Subject> = (0..AGGREGATES)
        .map(|n| subject(stream.prefix(), n).into())
        .collect();
    let headers = (0..AGGREGATES).map(our_headers).collect::<Result<Vec<_>>>()?;
    let mut acks = VecDeque::with_capacity(window);
    let start = Instant::now();
    for (n, (subject, headers)) in (0..messages).zip(subjects.iter().zip(&headers).cycle()) {
        let id = Uuid::now_v7().to_string();
        let publish = PublishMessage::build().payload(payload.clone());
        let publish = match extra {
            Extra::Nothing => publish.message_id(id),
            Extra::OurHeaders => publish.headers(header_map(headers, &id, n, &stream)?),
        };
        acks.push_back(context.send_publish(subject.clone(), publish).await?);
        if acks.len() >= window {
            confirm(&mut acks).await?;
        }
    }
    while !acks.is_empty() {
        confirm(&mut acks).await?;
    }
    let rate = per_second(messages, start.elapsed());
    stream.remove(messages).await?;
    Ok(rate)
}

/// Waits for the oldest acknowledgement. They come in order, so the others are there soon after.
async fn confirm(acks: &mut VecDeque<PublishAckFuture>) -> Result<()> {
    if let Some(ack) = acks.pop_front() {
        ack.into_future().await?;
    }
    Ok(())
}

/// Names and values of a message of an aggregate, as the library encodes them.
fn our_headers(aggregate: u64) -> Result<Vec<(String, String)>> {
    let message = NewMessage::from_event(&Moved::new(account_id(aggregate), 0))?
        .into_message(Some(1), OffsetDateTime::now_utc());
    Ok(codec::encode(&message, "outbox").received().0)
}

fn header_map(ours: &[(String, String)], id: &str, n: u64, stream: &Stream) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in ours {
        let value = match name.as_str() {
            "ce-id" => id.parse()?,
            "ce-sequence" => (n / AGGREGATES + 1).to_string().parse()?,
            _ => value.parse::<HeaderValue>()?,
        };
        headers.append(name.parse::<HeaderName>()?, value);
    }
    headers.insert(NATS_MESSAGE_ID, id.parse::<HeaderValue>()?);
    headers.insert(NATS_EXPECTED_STREAM, stream.name.parse::<HeaderValue>()?);
    Ok(headers)
}

/// Messages per second.
pub(crate) fn per_second(messages: u64, elapsed: Duration) -> f64 {
    messages as f64 / elapsed.as_secs_f64()
}
