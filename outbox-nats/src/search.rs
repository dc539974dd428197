//! Searches the subject of an aggregate for a message, over as many publishes as that takes.
//!
//! A publish is bounded, and a subject may have more messages than can be read in that time. So each search begins where the last one for the same message
//! ended. Invariant: a message counts as absent only if every message on its subject was seen, from an hour before it was recorded to the end.

use async_nats::HeaderMap;
use outbox_core::{FailureClass, Message, PublishError};
use tokio::time::Instant;

use crate::log::{self, CLOCKS_APART, Log, Start};
use crate::outcome::Attempt;
use crate::publisher::JetStreamPublisher;

impl JetStreamPublisher {
    /// The stream sequence of the message, if it is on its subject. If the time does not suffice to find out, the error is transient, and the next call goes
    /// on where this one ended.
    pub(crate) async fn search(
        &self,
        message: &Message,
        attempt: Attempt<'_>,
        deadline: Instant,
    ) -> Result<Option<u64>, PublishError> {
        let id = message.id;
        // The rest of the time is for deleting the consumer.
        let until = deadline - self.config().ack_timeout / 4;
        self.connected(async |live| {
            let log = Log::open(live, attempt.stream).await?;
            let (made_at, last) = (log.made_at(), log.last());
            let start = self.searches().until(id, &made_at);
            let start = start.map_or(Start::At(message.created_at - CLOCKS_APART), Start::Behind);
            let (mut found, mut seen) = (None, 0);
            let see = |stream_sequence, headers: &HeaderMap| {
                if log::message_id(headers) == Some(id) {
                    found = Some(stream_sequence);
                    return false;
                }
                // Noted at once, because this future may be dropped at its next await.
                self.searches().note(id, &made_at, stream_sequence);
                seen = stream_sequence;
                Instant::now() < until
            };
            let complete = log.read(Some(attempt.subject), start, see).await?;
            if found.is_some() {
                self.searches().forget(id);
            } else if complete {
                self.searches().note(id, &made_at, last);
            } else {
                let context = format!(
                    "message {id} may be on subject `{}` already: it was searched up to stream sequence {seen} of {last}, and the next try goes on there",
                    attempt.subject
                );
                return Err(PublishError::new(FailureClass::Transient, context));
            }
            Ok(found)
        })
        .await
    }
}
