//! Read access to an outbox's stream.
//!
//! Invariant: nothing is published, consumed or changed. Timeouts are reported.

use std::time::Duration;

use async_trait::async_trait;
use outbox::core::{EventId, Message, OutboxReader, describe};

use crate::admin::doctor::StreamFacts;
use crate::admin::{BrokerCheck, ConsumerRow, EffectRow, Preview, Readers, Reason, Refused, RowsKept};

/// Inbox rows of events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InboxView {
    /// Rows.
    pub rows: Vec<EffectRow>,
    /// Consumers with ack floors.
    pub floors: Vec<(String, u64)>,
    /// Unreadable parts.
    pub unseen: Vec<String>,
}

/// Why the broker would reject a message now.
pub type Refuses = Box<dyn Fn(&Message) -> Option<Refused> + Send + Sync>;

/// Access to a dashboard's stream. Implementations bound the time of their answers.
#[async_trait]
pub trait StreamView: Send + Sync + 'static {
    /// State of the stream.
    async fn broker(&self) -> BrokerCheck {
        BrokerCheck::NotAsked
    }

    /// Stream sequence of a published message, if on the stream.
    async fn locate(&self, _message: &Message) -> Result<Option<u64>, String> {
        Err("this dashboard has no access to the stream".to_owned())
    }

    /// Why the stream would reject messages now. Publishes nothing.
    async fn refuses(&self) -> Result<Refuses, String> {
        Err("this dashboard has no access to the stream".to_owned())
    }

    /// Which published rows the outbox keeps; a row missing within that time is reported. With the
    /// default [`RowsKept::Nothing`], no missing row is reported.
    fn rows_kept(&self) -> RowsKept {
        RowsKept::Nothing
    }

    /// Consumers of the stream.
    async fn consumers(&self) -> Result<Vec<ConsumerRow>, String> {
        Ok(Vec::new())
    }

    /// Use of the stream, read every two seconds for open pages; `None` if unknown.
    async fn filled(&self) -> Result<Option<StreamFacts>, String> {
        Ok(None)
    }

    /// Inbox rows for these events.
    async fn inboxes(&self, _events: &[EventId]) -> Result<InboxView, String> {
        Err("this dashboard has no access to the inboxes".to_owned())
    }

    /// Consumers of a message on the stream, with their inbox rows.
    async fn readers(&self, _message: &Message, _stream_sequence: u64) -> Result<Readers, String> {
        Err("this dashboard has no access to the consumers".to_owned())
    }

    /// Problem of the log, read every ten seconds for open pages.
    async fn log(&self) -> Result<Option<Reason>, String> {
        Ok(None)
    }
}

/// A view for an unknown stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStream;

impl StreamView for NoStream {}

/// Bounds the wait for an answer.
pub async fn answered<T>(
    patience: Duration,
    question: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let answer = tokio::time::timeout(patience, question).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {patience:?}")))
}

/// Adds to a preview whether causes still hold. Waits up to `patience` per answer. Returns parts
/// that were not checked.
pub async fn look_ahead(
    store: &impl OutboxReader,
    stream: &dyn StreamView,
    preview: &mut Preview,
    patience: Duration,
) -> Option<String> {
    if preview.first.is_empty() {
        return None;
    }
    let broker = answered(patience, stream.refuses()).await;
    let causes = async {
        let causes = crate::admin::causes(store, &preview.first, broker).await;
        causes.map_err(|error| describe(&error))
    };
    match answered(patience, causes).await {
        Ok(causes) => {
            preview.causes = causes;
            None
        }
        Err(error) => Some(format!("whether the causes still hold: {error}")),
    }
}
