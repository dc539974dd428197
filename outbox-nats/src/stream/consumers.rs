//! The durable consumers of the stream, and their positions.

use async_nats::jetstream::consumer::Info;
use futures_util::TryStreamExt as _;
use outbox_core::{FailureClass, PublishError};

use crate::publish::JetStreamPublisher;
use crate::subscribe::backlog::max_unacknowledged;

/// A durable pull consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamReading {
    /// The consumer's name.
    pub consumer: String,
    /// The stream sequence of the consumer's last delivery.
    pub delivered: u64,
    /// The ack floor: the stream sequence up to which all messages are acknowledged.
    pub floor: u64,
    /// Number of delivered, unacknowledged messages.
    pub unacknowledged: u64,
    /// The bound on unacknowledged messages; `None` without a bound.
    pub max_ack_pending: Option<u64>,
    /// Whether a process has an open pull request on the consumer.
    pub is_receiving: bool,
}

pub(crate) async fn durables(publisher: &JetStreamPublisher) -> Result<Vec<Info>, PublishError> {
    let name = &publisher.stream().name;
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        let context = format!("the consumers of stream `{name}` cannot be listed");
        PublishError::new(FailureClass::Unknown, context).with_source(error)
    };
    publisher
        .connected(async |live| {
            let stream = live.context.get_stream(name).await;
            let stream = stream.map_err(|error| failed(error.into()))?;
            let infos: Result<Vec<Info>, _> = stream.consumers().try_collect().await;
            let mut infos = infos.map_err(|error| failed(error.into()))?;
            infos.retain(|info| info.config.durable_name.is_some());
            Ok(infos)
        })
        .await
}

impl StreamReading {
    pub(crate) fn of(info: Info) -> Self {
        Self {
            delivered: info.delivered.stream_sequence,
            floor: info.ack_floor.stream_sequence,
            unacknowledged: u64::try_from(info.num_ack_pending).unwrap_or(u64::MAX),
            max_ack_pending: max_unacknowledged(&info),
            is_receiving: info.num_waiting > 0,
            consumer: info.name,
        }
    }
}
