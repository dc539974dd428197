//! The broker of a run as the orchestrator sees it: its stream, the progress of its consumers, and all published messages.
//!
//! Invariant: each run has its own stream, subject prefix and consumers, so it does not disturb other users of a shared broker.

use std::time::Duration;

use futures_util::StreamExt as _;
use outbox::testing::{LogEntry, MemoryBroker};
use outbox_nats::async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, Info, PullConsumer, pull};
use outbox_nats::async_nats::jetstream::context::ConsumerInfoErrorKind;
use outbox_nats::async_nats::jetstream::stream::Stream as JetStream;
use outbox_nats::async_nats::{Client, HeaderMap, jetstream};
use outbox_nats::{EventStream, JetStreamPublisher, JetStreamSubscriber, PublisherConfig, Servers as _};

use crate::failure::{Doing, Failure};
use crate::setup::{Part, Setup, Stream};

/// Messages per request while the stream is read back.
const READ_BATCH: usize = 500;

/// The broker of a run.
#[derive(Debug, Clone)]
pub(crate) enum Broker {
    /// A NATS server.
    Nats(Box<Nats>),
    /// A broker in the memory of this process.
    Memory(MemoryBroker),
}

/// A run's stream on a server.
#[derive(Debug, Clone)]
pub(crate) struct Nats {
    client: Client,
    stream: Stream,
}

impl Broker {
    /// Connects and creates the run's stream.
    pub(crate) async fn provision(stream: Stream) -> Result<Self, Failure> {
        let Some(url) = &stream.nats_url else {
            return Ok(Self::Memory(MemoryBroker::new()));
        };
        let client = connect(url).await?;
        event_stream(&stream)?
            .provision(&client)
            .await
            .or_cannot("make the stream")?;
        Ok(Self::Nats(Box::new(Nats { client, stream })))
    }

    /// The number of messages that consumers have not acknowledged; `None` until all of them have subscribed.
    pub(crate) async fn backlog(&self) -> Result<Option<u64>, Failure> {
        match self {
            Self::Nats(nats) => {
                let infos = nats.infos().await?;
                let of = |info: Info| info.num_pending + info.num_ack_pending as u64;
                Ok(infos.into_iter().map(|info| info.map(of)).sum())
            }
            Self::Memory(broker) => {
                let busy = Part::CONSUMERS
                    .into_iter()
                    .filter(|part| !broker.is_idle(part.name()))
                    .count();
                Ok(Some(busy as u64))
            }
        }
    }

    /// The number of messages on the stream, copies included.
    pub(crate) async fn messages(&self) -> Result<u64, Failure> {
        match self {
            Self::Nats(nats) => Ok(nats.jetstream().await?.cached_info().state.messages),
            Self::Memory(broker) => Ok(broker.log().len() as u64),
        }
    }

    /// The number of deliveries to all consumers, including copies and repeated deliveries.
    pub(crate) async fn deliveries(&self) -> Result<u64, Failure> {
        match self {
            Self::Nats(nats) => {
                let infos = nats.infos().await?;
                Ok(infos
                    .into_iter()
                    .flatten()
                    .map(|info| info.delivered.consumer_sequence)
                    .sum())
            }
            Self::Memory(broker) => Ok(Part::CONSUMERS
                .into_iter()
                .map(|part| broker.deliveries(part.name()))
                .sum()),
        }
    }

    /// Reads the whole stream from its beginning.
    pub(crate) async fn read(&self) -> Result<Vec<LogEntry>, Failure> {
        match self {
            Self::Nats(nats) => read(&nats.jetstream().await?).await,
            Self::Memory(broker) => Ok(broker.log()),
        }
    }

    /// Deletes the stream with its consumers.
    pub(crate) async fn delete(self) -> Result<(), Failure> {
        if let Self::Nats(nats) = self {
            let Nats { client, stream } = *nats;
            let deleted = jetstream::new(client).delete_stream(&stream.name).await;
            deleted.or_cannot(format_args!("delete stream {}", stream.name))?;
        }
        Ok(())
    }
}

impl Nats {
    /// The consumers' states on the server, in the order of [`Part::CONSUMERS`].
    async fn infos(&self) -> Result<Vec<Option<Info>>, Failure> {
        let stream = self.jetstream().await?;
        let mut infos = Vec::new();
        for part in Part::CONSUMERS {
            infos.push(match stream.consumer_info(part.name()).await {
                Ok(info) => Some(info),
                Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => None,
                Err(error) => return Err(error).or_cannot(format_args!("ask for consumer {}", part.name())),
            });
        }
        Ok(infos)
    }

    async fn jetstream(&self) -> Result<JetStream, Failure> {
        let name = &self.stream.name;
        let context = jetstream::new(self.client.clone());
        context
            .get_stream(name)
            .await
            .or_cannot(format_args!("find stream {name}"))
    }
}

async fn read(stream: &JetStream) -> Result<Vec<LogEntry>, Failure> {
    let wanted = stream.cached_info().state.messages;
    let config = pull::Config {
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::None,
        // The server removes this consumer by itself soon after the read has ended.
        inactive_threshold: Duration::from_secs(30),
        ..pull::Config::default()
    };
    let reader: PullConsumer = stream
        .create_consumer(config)
        .await
        .or_cannot("read the stream")?;
    let mut entries = Vec::new();
    while (entries.len() as u64) < wanted {
        let mut batch = reader
            .fetch()
            .max_messages(READ_BATCH)
            .messages()
            .await
            .or_cannot("read the stream")?;
        let before = entries.len();
        while let Some(message) = batch.next().await {
            let message = message.or_cannot("read the stream")?;
            let stream_sequence = message.info().or_cannot("read the stream")?.stream_sequence;
            let headers = message.headers.as_ref().map(pairs).unwrap_or_default();
            let subject = message.subject.to_string();
            entries.push(LogEntry::decode(
                stream_sequence,
                subject,
                &headers,
                message.payload.clone(),
            ));
        }
        if entries.len() == before {
            let read = entries.len();
            return Err(Failure::Wrong(format!(
                "the stream ended after {read} of {wanted} messages"
            )));
        }
    }
    Ok(entries)
}

fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let all = headers
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    all.map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

/// Connects to the broker's server.
async fn connect(url: &str) -> Result<Client, Failure> {
    let servers = url.servers().or_cannot("read the address of the broker")?;
    let options = outbox_nats::connect_options();
    outbox_nats::connect(servers, options)
        .await
        .or_cannot("connect to the broker")
}

/// The run's stream, as the library describes it.
fn event_stream(stream: &Stream) -> Result<EventStream, Failure> {
    EventStream::new(&stream.name)
        .with_prefix(&stream.prefix)
        .or_cannot("use the subject prefix")
}

/// A publisher to the run's stream, for a relay in a process of its own.
pub(crate) async fn publisher(setup: &Setup, part: Part) -> Result<JetStreamPublisher, Failure> {
    let config = PublisherConfig::default().source(format!("northwind/{}", part.name()));
    let client = connect(nats_url(setup)?).await?;
    Ok(event_stream(&setup.stream)?.publisher(client).with_config(config))
}

/// A subscriber of the run's stream, for a consumer in a process of its own.
pub(crate) async fn subscriber(setup: &Setup) -> Result<JetStreamSubscriber, Failure> {
    let client = connect(nats_url(setup)?).await?;
    Ok(event_stream(&setup.stream)?.subscriber(client))
}

fn nats_url(setup: &Setup) -> Result<&str, Failure> {
    let missing =
        || Failure::Wrong("the setup of this run has no NATS server; its broker is in memory".to_owned());
    setup.stream.nats_url.as_deref().ok_or_else(missing)
}
