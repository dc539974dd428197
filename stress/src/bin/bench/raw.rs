//! Plain publishing with async-nats: the baseline of the relay, and the message source of inboxes.

use std::collections::VecDeque;
use std::future::IntoFuture as _;
use std::time::{Duration, Instant};

use async_nats::header::{HeaderName, HeaderValue, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{Context, ContextBuilder, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{HeaderMap, Subject};
use outbox_core::{NewMessage, codec};
use outbox_nats::SubjectPrefix;
use time::OffsetDateTime;
use tokio_util::bytes::Bytes;
use uuid::Uuid;

use crate::Result;
use crate::load::{AGGREGATES, Moved, PAYLOAD_BYTES, account_id};
use crate::servers::{Servers, Stream};

pub(crate) const WINDOW: usize = 1024;

pub(crate) fn context(client: async_nats::Client) -> Context {
    ContextBuilder::new()
        .timeout(Duration::from_secs(30))
        .ack_timeout(Duration::from_secs(30))
        .max_ack_inflight(2 * WINDOW)
        .build(client)
}

pub(crate) async fn rate(servers: &Servers, messages: u64, window: usize) -> Result<f64> {
    let stream = servers.stream().await?;
    let context = context(async_nats::connect(stream.nats_url.as_str()).await?);
    let maker = Messages::new(&stream)?;
    let start = Instant::now();
    publish(&context, messages, window, |n| Ok(maker.message(n))).await?;
    let rate = per_second(messages, start.elapsed());
    stream.remove(messages).await?;
    Ok(rate)
}

pub(crate) async fn fill(stream: &Stream, maker: &Messages, messages: u64) -> Result<()> {
    let context = context(async_nats::connect(stream.nats_url.as_str()).await?);
    publish(&context, messages, WINDOW, |n| maker.event(n)).await
}

async fn publish(
    context: &Context,
    messages: u64,
    window: usize,
    message: impl Fn(u64) -> Result<(Subject, PublishMessage)>,
) -> Result<()> {
    let mut acks = VecDeque::with_capacity(window);
    for n in 0..messages {
        let (subject, publish) = message(n)?;
        acks.push_back(context.send_publish(subject, publish).await?);
        if acks.len() >= window {
            confirm(&mut acks).await?;
        }
    }
    while !acks.is_empty() {
        confirm(&mut acks).await?;
    }
    Ok(())
}

async fn confirm(acks: &mut VecDeque<PublishAckFuture>) -> Result<()> {
    if let Some(ack) = acks.pop_front() {
        ack.into_future().await?;
    }
    Ok(())
}

#[derive(Debug)]
pub(crate) struct Messages {
    stream: String,
    aggregates: Vec<Aggregate>,
    filler: Bytes,
}

#[derive(Debug)]
struct Aggregate {
    subject: Subject,
    headers: Vec<(HeaderName, HeaderValue)>,
    payload: Bytes,
}

impl Messages {
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        let prefix = SubjectPrefix::new(stream.prefix())?;
        Ok(Self {
            stream: stream.name.clone(),
            aggregates: (0..AGGREGATES)
                .map(|n| Aggregate::new(&prefix, n))
                .collect::<Result<_>>()?,
            filler: Bytes::from(vec![b'n'; usize::try_from(PAYLOAD_BYTES)?]),
        })
    }

    fn aggregate(&self, n: u64) -> &Aggregate {
        &self.aggregates[(n % AGGREGATES) as usize]
    }

    fn message(&self, n: u64) -> (Subject, PublishMessage) {
        let publish = PublishMessage::build()
            .payload(self.filler.clone())
            .message_id(Uuid::now_v7().to_string());
        (self.aggregate(n).subject.clone(), publish)
    }

    fn event(&self, n: u64) -> Result<(Subject, PublishMessage)> {
        let aggregate = self.aggregate(n);
        let headers = self.headers(aggregate, &Uuid::now_v7().to_string(), n)?;
        let publish = PublishMessage::build()
            .payload(aggregate.payload.clone())
            .headers(headers);
        Ok((aggregate.subject.clone(), publish))
    }

    fn headers(&self, aggregate: &Aggregate, id: &str, n: u64) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, value) in &aggregate.headers {
            let value = match name.as_ref() {
                "ce-id" => id.parse()?,
                "ce-sequence" => (n / AGGREGATES + 1).to_string().parse()?,
                _ => value.clone(),
            };
            headers.insert(name.clone(), value);
        }
        headers.insert(NATS_MESSAGE_ID, id.parse::<HeaderValue>()?);
        headers.insert(NATS_EXPECTED_STREAM, self.stream.parse::<HeaderValue>()?);
        Ok(headers)
    }
}

impl Aggregate {
    fn new(prefix: &SubjectPrefix, n: u64) -> Result<Self> {
        let event = Moved::new(account_id(n), 0);
        let message = NewMessage::from_event(&event)?.into_message(Some(1), OffsetDateTime::now_utc());
        let subject = prefix.subject(&message)?;
        let encoded = codec::encode(&message, "outbox");
        let headers = encoded.headers.into_iter();
        Ok(Self {
            subject: subject.into(),
            headers: headers
                .map(|(name, value)| Ok((name.parse()?, value.parse()?)))
                .collect::<Result<_>>()?,
            payload: encoded.payload,
        })
    }
}

pub(crate) fn per_second(messages: u64, elapsed: Duration) -> f64 {
    messages as f64 / elapsed.as_secs_f64()
}
