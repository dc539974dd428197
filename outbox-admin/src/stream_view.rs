//! The stream of an outbox, as far as an operator's program knows it, and what it adds to previews.
//!
//! Invariants: nothing is published, received or changed. An answer that does not come in time is missing, and is reported as such.

use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{EventId, Message, OutboxReader, describe};

use crate::{BrokerCheck, ConsumerRow, EffectRow, Preview, Readers, Reason, Refused, RowsKept, StreamUse};

/// What the inboxes of a stream's consumers say about events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InboxView {
    /// Their rows.
    pub rows: Vec<EffectRow>,
    /// The consumers of the stream, each with the stream sequence up to which it has acknowledged everything.
    pub floors: Vec<(String, u64)>,
    /// What could not be looked at, for people.
    pub unseen: Vec<String>,
}

/// Says why the broker would refuse a message now, or `None`.
pub type Refuses = Box<dyn Fn(&Message) -> Option<Refused> + Send + Sync>;

/// What a dashboard can find out about the stream of its outbox. Each answer is bounded in time by the implementation, and by the dashboard once more.
#[async_trait]
pub trait StreamView: Send + Sync + 'static {
    /// Whether the stream is there and takes messages.
    async fn broker(&self) -> BrokerCheck {
        BrokerCheck::NotAsked
    }

    /// The stream sequence of a published message; `None` if it is not on the stream. The error is for people.
    async fn locate(&self, _message: &Message) -> Result<Option<u64>, String> {
        Err("this dashboard does not know the stream".to_owned())
    }

    /// How the stream stands, as what says why it would refuse a message now: for the preview of a change that has messages tried again. Nothing is published. The
    /// error is for people.
    async fn refuses(&self) -> Result<Refuses, String> {
        Err("this dashboard does not know the stream".to_owned())
    }

    /// Since when the outbox keeps the rows of published messages. Missing rows of that time are reported. Default: [`RowsKept::Nothing`], and none is reported.
    fn rows_kept(&self) -> RowsKept {
        RowsKept::Nothing
    }

    /// The consumers of the stream. The error is for people.
    async fn consumers(&self) -> Result<Vec<ConsumerRow>, String> {
        Ok(Vec::new())
    }

    /// How the stream is filled, asked each two seconds while somebody looks; `None` if it is not known. The error is for people.
    async fn filled(&self) -> Result<Option<StreamUse>, String> {
        Ok(None)
    }

    /// What the inboxes of the stream's consumers say about these events. The error is for people.
    async fn inboxes(&self, _events: &[EventId]) -> Result<InboxView, String> {
        Err("this dashboard does not know the inboxes".to_owned())
    }

    /// The consumers of a message that is on the stream, with this stream sequence, and what their inboxes say of its event. The error is for people.
    async fn readers(&self, _message: &Message, _stream_sequence: u64) -> Result<Readers, String> {
        Err("this dashboard does not know the consumers".to_owned())
    }

    /// What is wrong with the log of a log relay, asked each ten seconds while somebody looks; `None` if nothing is, or there is no log. The error is for people.
    async fn log(&self) -> Result<Option<Reason>, String> {
        Ok(None)
    }
}

/// A stream of which nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStream;

impl StreamView for NoStream {}

/// Waits for what makes an answer better, and is not needed for it. The error is for people.
pub(crate) async fn answered<T>(
    patience: Duration,
    question: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let answer = tokio::time::timeout(patience, question).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {patience:?}")))
}

/// Adds to the preview of a retry or a replay whether the causes of failures persist. Waits up to `patience` for each answer. Returns what could not
/// be checked, for people.
pub async fn look_ahead(
    store: &impl OutboxReader,
    stream: &dyn StreamView,
    preview: &mut Preview,
    patience: Duration,
) -> Option<String> {
    // A change that publishes nothing names no messages.
    if preview.first.is_empty() {
        return None;
    }
    let broker = answered(patience, stream.refuses()).await;
    let causes = async {
        let causes = crate::causes(store, &preview.first, broker).await;
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
