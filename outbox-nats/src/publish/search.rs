//! Searches the subject of an aggregate for a message, across several publishes if needed.
//!
//! Each search continues where the previous search for the same message ended. Invariant: a message
//! counts as absent only if every message on its subject was read, from an hour before the message
//! was recorded to the end of the stream.

use std::collections::HashMap;

use async_nats::HeaderMap;
use outbox_core::{FailureClass, Message, MessageId, PublishError};
use tokio::time::Instant;

use crate::publish::JetStreamPublisher;
use crate::publish::outcome::PublishAttempt;
use crate::stream::listing::{self, CLOCKS_APART, Log, Start};

/// Maximum number of remembered searches.
const SEARCHES_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Searches(HashMap<MessageId, Searched>);

#[derive(Debug)]
struct Searched {
    made_at: String,
    /// The message is not on its subject up to this stream sequence.
    until: u64,
}

impl Searches {
    pub(crate) fn forget(&mut self, id: MessageId) {
        if !self.0.is_empty() {
            self.0.remove(&id);
        }
    }

    pub(crate) fn until(&self, id: MessageId, made_at: &str) -> Option<u64> {
        let searched = self.0.get(&id).filter(|searched| searched.made_at == made_at)?;
        Some(searched.until)
    }

    pub(crate) fn note(&mut self, id: MessageId, made_at: &str, until: u64) {
        if let Some(searched) = self.0.get_mut(&id)
            && searched.made_at == made_at
        {
            searched.until = searched.until.max(until);
            return;
        }
        if self.0.len() >= SEARCHES_MAX {
            self.0.clear();
        }
        let made_at = made_at.to_owned();
        self.0.insert(id, Searched { made_at, until });
    }
}

/// Searches for the message. If the deadline is too short, the error is transient, and the next
/// call continues.
pub(crate) async fn find(
    publisher: &JetStreamPublisher,
    message: &Message,
    attempt: PublishAttempt<'_>,
    deadline: Instant,
) -> Result<Option<u64>, PublishError> {
    let id = message.id;
    // The time between `until` and `deadline` is for deleting the consumer.
    let until = deadline - publisher.config().ack_timeout / 4;
    publisher.connected(async |live| {
        let log = Log::open(live, attempt.stream).await?;
        let (made_at, last) = (log.made_at(), log.last());
        let start = publisher.searches().until(id, &made_at);
        let start = start.map_or(Start::At(message.created_at - CLOCKS_APART), Start::Behind);
        let (mut found, mut seen) = (None, 0);
        let see = |stream_sequence, _, headers: &HeaderMap| {
            if listing::message_id(headers) == Some(id) {
                found = Some(stream_sequence);
                return false;
            }
            // The progress is saved at once: this future may be dropped at its next await.
            publisher.searches().note(id, &made_at, stream_sequence);
            seen = stream_sequence;
            Instant::now() < until
        };
        let complete = log.read(Some(attempt.subject), start, see).await?;
        if found.is_some() {
            publisher.searches().forget(id);
        } else if complete {
            publisher.searches().note(id, &made_at, last);
        } else {
            let context = format!(
                "message {id} may already be on subject `{}`: the search has reached stream sequence {seen} of {last}, and the next attempt continues there",
                attempt.subject
            );
            return Err(PublishError::new(FailureClass::Transient, context));
        }
        Ok(found)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_belongs_to_a_message_and_a_stream() {
        let (one, other) = (MessageId::fresh(), MessageId::fresh());
        let mut searches = Searches::default();
        searches.note(one, "then", 7);
        searches.note(one, "then", 5);
        assert_eq!(searches.until(one, "then"), Some(7));
        assert_eq!(searches.until(other, "then"), None);
        assert_eq!(searches.until(one, "later"), None, "the stream was recreated");
        searches.note(one, "later", 2);
        assert_eq!(searches.until(one, "later"), Some(2));
        searches.forget(one);
        assert_eq!(searches.until(one, "later"), None);
    }

    #[test]
    fn progress_of_many_messages_is_bounded() {
        let mut searches = Searches::default();
        for until in 0..3_000 {
            searches.note(MessageId::fresh(), "then", until);
        }
        assert!(searches.0.len() <= SEARCHES_MAX);
    }
}
