//! Access to the stream of an outbox for operator programs, and stream checks in previews.
//!
//! Invariant: nothing is published, consumed or changed. An answer that times out is reported as
//! missing.

use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{EventId, Message, OutboxReader, describe};

use crate::{BrokerCheck, ConsumerRow, EffectRow, Preview, Readers, Reason, Refused, RowsKept, StreamUse};

/// Inbox rows of the stream's consumers for a set of events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InboxView {
    /// Rows of the inboxes.
    pub rows: Vec<EffectRow>,
    /// Consumers of the stream with their ack floors.
    pub floors: Vec<(String, u64)>,
    /// Parts that could not be read, for people.
    pub unseen: Vec<String>,
}

/// Returns why the broker would reject a message now, or `None`.
pub type Refuses = Box<dyn Fn(&Message) -> Option<Refused> + Send + Sync>;

/// Read access to the stream of a dashboard's outbox. The implementation bounds the time of each
/// answer; the dashboard adds its own timeout.
#[async_trait]
pub trait StreamView: Send + Sync + 'static {
    /// Whether the stream exists and accepts messages.
    async fn broker(&self) -> BrokerCheck {
        BrokerCheck::NotAsked
    }

    /// Stream sequence of a published message; `None` if absent from the stream. The error is for
    /// people.
    async fn locate(&self, _message: &Message) -> Result<Option<u64>, String> {
        Err("this dashboard does not know the stream".to_owned())
    }

    /// A function that returns why the stream would reject a message now, for previews of retries.
    /// Nothing is published. The error is for people.
    async fn refuses(&self) -> Result<Refuses, String> {
        Err("this dashboard does not know the stream".to_owned())
    }

    /// Since when the outbox keeps rows of published messages; missing rows of that time are
    /// reported. Default: [`RowsKept::Nothing`], so none is reported.
    fn rows_kept(&self) -> RowsKept {
        RowsKept::Nothing
    }

    /// Consumers of the stream. The error is for people.
    async fn consumers(&self) -> Result<Vec<ConsumerRow>, String> {
        Ok(Vec::new())
    }

    /// Use of the stream, read every two seconds while a page is open; `None` if unknown. The error
    /// is for people.
    async fn filled(&self) -> Result<Option<StreamUse>, String> {
        Ok(None)
    }

    /// Inbox rows of the stream's consumers for these events. The error is for people.
    async fn inboxes(&self, _events: &[EventId]) -> Result<InboxView, String> {
        Err("this dashboard does not know the inboxes".to_owned())
    }

    /// Consumers of a message on the stream, with their inbox rows for its event. The error is for
    /// people.
    async fn readers(&self, _message: &Message, _stream_sequence: u64) -> Result<Readers, String> {
        Err("this dashboard does not know the consumers".to_owned())
    }

    /// Problem of the log of a log relay, read every ten seconds while a page is open; `None`
    /// without a log or a problem. The error is for people.
    async fn log(&self) -> Result<Option<Reason>, String> {
        Ok(None)
    }
}

/// A view for an unknown stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStream;

impl StreamView for NoStream {}

/// Bounds the wait for an optional answer. The error is for people.
pub(crate) async fn answered<T>(
    patience: Duration,
    question: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let answer = tokio::time::timeout(patience, question).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {patience:?}")))
}

/// Adds to a preview of a retry or replay whether the causes still hold. Waits up to `patience`
/// for each answer. Returns the part that could not be checked, for people.
pub async fn look_ahead(
    store: &impl OutboxReader,
    stream: &dyn StreamView,
    preview: &mut Preview,
    patience: Duration,
) -> Option<String> {
    // A change that publishes nothing lists no messages.
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
