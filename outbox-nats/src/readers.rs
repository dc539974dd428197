//! What the durable consumers of the stream ask for, and how they stand towards one of its messages.
//!
//! Invariant: nothing is received or changed.

use async_nats::jetstream::consumer::Info;
use futures_util::TryStreamExt as _;
use outbox_core::{FailureClass, Message, PublishError, codec};

use crate::headers;
use crate::log::message_id;
use crate::publisher::JetStreamPublisher;
use crate::standing::max_unacknowledged;
use crate::subject::captures;

/// A durable consumer that pulls.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamReading {
    /// Its name.
    pub consumer: String,
    /// The last stream sequence that it was handed.
    pub delivered: u64,
    /// The stream sequence up to which it has acknowledged everything.
    pub floor: u64,
    /// Messages that it was handed and has not acknowledged.
    pub unacknowledged: u64,
    /// The most messages that it may have unacknowledged; `None` if there is no such bound.
    pub max_ack_pending: Option<u64>,
    /// Whether a process asks for messages at this moment.
    pub is_receiving: bool,
}

/// What a durable consumer of the stream asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DurableFilters {
    /// Its name.
    pub consumer: String,
    /// The subjects that it asks for; none if it asks for everything.
    pub filters: Vec<String>,
}

impl JetStreamPublisher {
    /// The durable pull consumers whose filters take the subject of a message, by their names. Takes a request for each 256 consumers of the stream.
    ///
    /// # Errors
    ///
    /// If the consumers cannot be listed.
    pub async fn readings_of(&self, message: &Message) -> Result<Vec<StreamReading>, PublishError> {
        let subject = self.subject_of(message)?;
        let infos = self.durables().await?;
        let takes = |info: &Info| {
            let pulls = info.config.deliver_subject.is_none();
            pulls && DurableFilters::of(info).takes(&subject)
        };
        let mut readings: Vec<StreamReading> =
            infos.into_iter().filter(takes).map(StreamReading::of).collect();
        readings.sort_by(|one, other| one.consumer.cmp(&other.consumer));
        Ok(readings)
    }

    /// What the durable consumers of the stream ask for, by their names. Takes a request for each 256 consumers of the stream.
    ///
    /// # Errors
    ///
    /// If the consumers cannot be listed.
    pub async fn durable_filters(&self) -> Result<Vec<DurableFilters>, PublishError> {
        let infos = self.durables().await?;
        let mut durables: Vec<DurableFilters> = infos.iter().map(DurableFilters::of).collect();
        durables.sort_by(|one, other| one.consumer.cmp(&other.consumer));
        Ok(durables)
    }

    /// Whether a durable consumer is handed a message once it is published. One that cannot be sent is handed to nobody.
    #[must_use]
    pub fn would_hand(&self, durable: &DurableFilters, message: &Message) -> bool {
        let subject = self.subject_of(message);
        subject.is_ok_and(|subject| durable.takes(&subject))
    }

    async fn durables(&self) -> Result<Vec<Info>, PublishError> {
        let name = &self.stream().name;
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            let context = format!("the consumers of stream `{name}` cannot be listed");
            PublishError::new(FailureClass::Unknown, context).with_source(error)
        };
        self.connected(async |live| {
            let stream = live.context.get_stream(name).await;
            let stream = stream.map_err(|error| failed(error.into()))?;
            let infos: Result<Vec<Info>, _> = stream.consumers().try_collect().await;
            let mut infos = infos.map_err(|error| failed(error.into()))?;
            infos.retain(|info| info.config.durable_name.is_some());
            Ok(infos)
        })
        .await
    }

    /// The service that numbers the events of a message's aggregate, as the message on the stream names it (`ce-source`); empty if it names none. `None` if another
    /// message has this stream sequence, as on a stream that was made anew. Two requests; the user needs permission to publish on `$JS.API.STREAM.INFO.<stream>` and
    /// `$JS.API.STREAM.MSG.GET.<stream>`.
    ///
    /// # Errors
    ///
    /// If the message or its header cannot be read.
    pub async fn source_of(
        &self,
        message: &Message,
        stream_sequence: u64,
    ) -> Result<Option<String>, PublishError> {
        let name = &self.stream().name;
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            let context = format!("stream sequence {stream_sequence} of stream `{name}` cannot be read");
            PublishError::new(FailureClass::Unknown, context).with_source(error)
        };
        self.connected(async |live| {
            let stream = live.context.get_stream(name).await;
            let stream = stream.map_err(|error| failed(error.into()))?;
            let found = stream.get_raw_message(stream_sequence).await;
            let found = found.map_err(|error| failed(error.into()))?;
            if message_id(&found.headers) != Some(message.id) {
                return Ok(None);
            }
            let source = codec::source(&headers::decode(&found.headers));
            source.map(Some).map_err(|error| failed(error.into()))
        })
        .await
    }
}

impl DurableFilters {
    fn of(info: &Info) -> Self {
        let config = &info.config;
        let one = Some(&config.filter_subject).filter(|filter| !filter.is_empty());
        Self {
            consumer: info.name.clone(),
            filters: config.filter_subjects.iter().chain(one).cloned().collect(),
        }
    }

    fn takes(&self, subject: &str) -> bool {
        self.filters.is_empty() || captures(&self.filters, subject)
    }
}

impl StreamReading {
    fn of(info: Info) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_takes_what_one_of_its_filters_selects_and_without_filters_everything() {
        let takes = |filters: &[&str], subject: &str| {
            let durable = DurableFilters {
                consumer: "billing".to_owned(),
                filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            };
            durable.takes(subject)
        };
        let placed = "events.order.1.placed";
        assert!(takes(&[], placed));
        assert!(takes(&["events.cart.>", "events.order.*.placed"], placed));
        assert!(!takes(&["events.cart.>", "events.order.*.paid"], placed));
    }
}
