//! Stream logs with one mistake each.

use std::collections::HashSet;

use outbox_core::message::{Message, MessageId};
use outbox_core::publisher::{
    FailureClass, PublishError, StreamExtent, StreamLog, StreamReader, StreamSearch, StreamedMessage,
};
use time::OffsetDateTime;

use outbox_testing::MemoryBroker;

use StreamLogMistake as M;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamLogMistake {
    /// The list uses event ids, so a copy hides the loss of its original.
    ListsEvents,
    ReadsOneBatch,
    IgnoresStart,
    FailsOnForeign,
    /// A search for a copy returns the original.
    LocatesEvents,
    /// Reading returns only one copy of each event.
    ShowsNoCopies,
    ShowsByAggregate,
    CountsNoForeign,
    ShowsOlder,
    /// Reading continues after the callback returned `false`.
    ShowsOn,
}

#[derive(Debug)]
pub struct WrongStreamLog {
    inner: MemoryBroker,
    mistake: StreamLogMistake,
}

impl WrongStreamLog {
    #[must_use]
    pub fn new(inner: MemoryBroker, mistake: StreamLogMistake) -> Self {
        Self { inner, mistake }
    }
}

impl StreamLog for WrongStreamLog {
    async fn message_ids(&self, from: OffsetDateTime) -> Result<HashSet<MessageId>, PublishError> {
        match self.mistake {
            M::ListsEvents => {
                let events = self.inner.messages().into_iter().map(|message| message.event_id);
                Ok(events.map(|event| event.as_uuid().into()).collect())
            }
            M::ReadsOneBatch => {
                let ids = self.inner.message_ids(from).await?;
                Ok(ids.into_iter().take(500).collect())
            }
            M::IgnoresStart => self.inner.message_ids(OffsetDateTime::UNIX_EPOCH).await,
            M::FailsOnForeign => {
                if self.inner.log().iter().any(|entry| entry.message.is_err()) {
                    let context = "the stream holds something that is no message";
                    return Err(PublishError::new(FailureClass::Permanent, context));
                }
                self.inner.message_ids(from).await
            }
            _ => self.inner.message_ids(from).await,
        }
    }
}

impl StreamSearch for WrongStreamLog {
    async fn locate(&self, message: &Message) -> Result<Option<u64>, PublishError> {
        if self.mistake == M::LocatesEvents {
            let entries = self.inner.log().into_iter();
            let mut of_event = entries.filter(|entry| {
                let found = entry.message.as_ref();
                found.is_ok_and(|found| found.event_id == message.event_id)
            });
            return Ok(of_event.next().map(|entry| entry.stream_sequence));
        }
        self.inner.locate(message).await
    }
}

impl StreamReader for WrongStreamLog {
    async fn read(
        &self,
        from: OffsetDateTime,
        mut see: impl FnMut(StreamedMessage) -> bool + Send,
    ) -> Result<StreamExtent, PublishError> {
        let from = match self.mistake {
            M::ShowsOlder => OffsetDateTime::UNIX_EPOCH,
            _ => from,
        };
        let mut messages = Vec::new();
        let collect = |message| {
            messages.push(message);
            true
        };
        let mut extent = self.inner.read(from, collect).await?;
        match self.mistake {
            M::ShowsNoCopies => {
                let mut seen = HashSet::new();
                messages.retain(|message| seen.insert(message.event_id));
            }
            M::ShowsByAggregate => messages.sort_by_key(|message| message.aggregate.id.clone()),
            M::CountsNoForeign => extent.foreign = 0,
            _ => {}
        }
        for message in messages {
            if !see(message) && self.mistake != M::ShowsOn {
                break;
            }
        }
        Ok(extent)
    }
}
