//! Operator queries about a stream and its messages. Nothing is published or changed.

use async_nats::jetstream::consumer::Info;
use outbox_core::{FailureClass, Message, PublishError, codec};

use crate::publish::JetStreamPublisher;
use crate::stream::admission::{self, Refusal, StreamOutlook};
use crate::stream::consumers::{self, StreamReading};
use crate::stream::listing::message_id;
use crate::stream::{headers, message as stored_message};
use crate::subscribe::filters::takes;

impl JetStreamPublisher {
    /// Reads the state of the stream. Waits at most 2 s for the connection, and
    /// [`PublisherConfig::ack_timeout`](crate::PublisherConfig) for each request.
    ///
    /// # Errors
    ///
    /// An error if the stream cannot be read. [`Self::foresee`] reports a missing stream.
    pub async fn outlook(&self) -> Result<StreamOutlook, PublishError> {
        self.connected(async |live| admission::read(live, &self.stream().name).await)
            .await
    }

    /// Why the stream would reject a message, if `outlook` proves a rejection. Sends no request.
    #[must_use]
    pub fn foresee(&self, outlook: &StreamOutlook, message: &Message) -> Option<Refusal> {
        let unsendable = |what: String| Refusal::Unsendable { what };
        let subject = match self.subject_of(message) {
            Ok(subject) => subject,
            Err(error) => return Some(unsendable(outbox_core::describe(&error))),
        };
        let encoded = headers::encode(message, &self.config().source, &outlook.name);
        let bytes = match encoded {
            Ok((headers, payload)) => admission::size_of(&headers) + payload.len(),
            Err(error) => return Some(unsendable(outbox_core::describe(&error))),
        };
        outlook.refuses(&subject, bytes)
    }

    /// Lists the durable pull consumers whose filters match a message, by name. Sends one request
    /// per 256 consumers of the stream.
    ///
    /// # Errors
    ///
    /// An error if the consumers cannot be listed.
    pub async fn readings_of(&self, message: &Message) -> Result<Vec<StreamReading>, PublishError> {
        let subject = self.subject_of(message)?;
        let infos = consumers::durables(self).await?;
        let takes = |info: &Info| {
            let pulls = info.config.deliver_subject.is_none();
            pulls && takes(info, &subject)
        };
        let mut readings: Vec<StreamReading> =
            infos.into_iter().filter(takes).map(StreamReading::of).collect();
        readings.sort_by(|one, other| one.consumer.cmp(&other.consumer));
        Ok(readings)
    }

    /// Returns the service that numbers the events of a message's aggregate: header `ce-source` of
    /// the message on the stream, or empty without this header. Returns `None` if another message
    /// has this stream sequence, as on a recreated stream. Sends one request; the user needs
    /// permission to publish on `$JS.API.STREAM.MSG.GET.<stream>`.
    ///
    /// # Errors
    ///
    /// An error if the stream or the message is missing, or if the header cannot be read.
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
            let found = stored_message::at(&live.context, name, stream_sequence).await;
            let found = found.map_err(|error| failed(error.into()))?;
            let found = found.ok_or_else(|| failed("the message is missing".into()))?;
            if message_id(&found.headers) != Some(message.id) {
                return Ok(None);
            }
            let source = codec::source(&headers::decode(&found.headers));
            source.map(Some).map_err(|error| failed(error.into()))
        })
        .await
    }
}
