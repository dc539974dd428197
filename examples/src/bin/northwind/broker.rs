//! The broker of a run: its stream, the progress of its consumers, and all published messages.
//!
//! Each run has its own stream, subject prefix and consumers, so other users of a shared broker are
//! not affected.

use anyhow::{Context as _, Result};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use outbox::testing::{LogEntry, MemoryBroker};
use outbox_nats::async_nats::jetstream::context::ConsumerInfoErrorKind;
use outbox_nats::async_nats::jetstream::stream::Stream as JetStream;
use outbox_nats::async_nats::{Client, HeaderMap, jetstream};
use outbox_nats::{EventStream, JetStreamPublisher, JetStreamSubscriber, PublisherConfig};

use crate::setup::{Part, Setup};

const READ_AHEAD: usize = 64;

#[derive(Debug, Clone)]
pub(crate) enum Broker {
    Nats(Box<JetStream>),
    Memory(MemoryBroker),
}

impl Broker {
    pub(crate) async fn provision(setup: &Setup) -> Result<Self> {
        if setup.nats_url.is_none() {
            return Ok(Self::Memory(MemoryBroker::new()));
        }
        let client = connect(setup).await?;
        event_stream(setup)?
            .provision(&client)
            .await
            .context("cannot create the stream")?;
        let stream = jetstream::new(client).get_stream(&setup.stream).await?;
        Ok(Self::Nats(Box::new(stream)))
    }

    /// The numbers of unacknowledged messages and of deliveries, including copies and redeliveries;
    /// `None` until all consumers have subscribed.
    pub(crate) async fn consumers(&self) -> Result<Option<(u64, u64)>> {
        let (mut backlog, mut deliveries) = (0, 0);
        for name in Part::CONSUMERS.map(Part::name) {
            match self {
                Self::Nats(stream) => match stream.consumer_info(name).await {
                    Ok(info) => {
                        backlog += info.num_pending + info.num_ack_pending as u64;
                        deliveries += info.delivered.consumer_sequence;
                    }
                    Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(error).context("cannot read the state of the consumers"),
                },
                Self::Memory(broker) => {
                    backlog += u64::from(!broker.is_idle(name));
                    deliveries += broker.deliveries(name);
                }
            }
        }
        Ok(Some((backlog, deliveries)))
    }

    pub(crate) async fn messages(&self) -> Result<u64> {
        match self {
            Self::Nats(stream) => Ok(stream.get_info().await?.state.messages),
            Self::Memory(broker) => Ok(broker.log().len() as u64),
        }
    }

    pub(crate) async fn read(&self) -> Result<Vec<LogEntry>> {
        let stream = match self {
            Self::Nats(stream) => stream,
            Self::Memory(broker) => return Ok(broker.log()),
        };
        let read = async |sequence| -> Result<LogEntry> {
            let stored = stream.get_raw_message(sequence).await;
            let stored = stored.context("cannot read the stream")?;
            let (subject, headers) = (stored.subject.to_string(), pairs(&stored.headers));
            Ok(LogEntry::decode(sequence, subject, &headers, stored.payload))
        };
        let last = stream.get_info().await?.state.last_sequence;
        stream::iter((1..=last).map(read))
            .buffered(READ_AHEAD)
            .try_collect()
            .await
    }

    pub(crate) async fn delete(self, setup: &Setup) -> Result<()> {
        if matches!(self, Self::Nats(_)) {
            let context = jetstream::new(connect(setup).await?);
            context.delete_stream(&setup.stream).await?;
        }
        Ok(())
    }
}

fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let all = headers
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    all.map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

async fn connect(setup: &Setup) -> Result<Client> {
    let url = setup.nats_url.as_deref().context("the broker is in memory")?;
    outbox_nats::connect(url, outbox_nats::connect_options())
        .await
        .context("cannot connect to the broker")
}

fn event_stream(setup: &Setup) -> Result<EventStream> {
    Ok(EventStream::new(&setup.stream).with_prefix(&setup.stream)?)
}

pub(crate) async fn publisher(setup: &Setup, part: Part) -> Result<JetStreamPublisher> {
    let config = PublisherConfig::default().source(format!("northwind/{}", part.name()));
    let client = connect(setup).await?;
    Ok(event_stream(setup)?.publisher(client).with_config(config))
}

pub(crate) async fn subscriber(setup: &Setup) -> Result<JetStreamSubscriber> {
    Ok(event_stream(setup)?.subscriber(connect(setup).await?))
}
