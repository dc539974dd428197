//! Publishes messages that the broker has lost, such as after a restore.
//!
//! Invariant: a republished message keeps its id, so reconciling again is harmless: the broker
//! drops stored messages, and consumers recognize handled messages.
//!
//! Not guaranteed:
//!
//! * Stream order: a republished message follows messages that are on the stream already. Per
//!   aggregate, messages are republished in sequence, within the clock skew of their writers.
//! * A message deleted from the stream within the duplicate window: the broker drops its copy as a
//!   duplicate. Run again after the window.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use crate::message::{Message, MessageId};
use crate::publisher::{PublishError, Publisher, StreamLog};
use crate::store::{OutboxAdmin, StoreError, within};

const CLOCK_SLACK: Duration = Duration::from_secs(3600);

const PAGE: NonZeroU32 = NonZeroU32::new(1000).unwrap();

const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Messages to compare, by time of recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Start, inclusive. Reconciling uses about 50 bytes of memory per message on the stream since
    /// then.
    pub from: OffsetDateTime,
    /// End, exclusive.
    pub until: OffsetDateTime,
}

/// Comparison counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconciled {
    /// Published messages that were searched on the stream.
    pub compared: u64,
    /// Compared messages that were missing on the stream.
    pub missing: u64,
    /// Missing messages now stored.
    pub published: u64,
    /// Missing messages that the broker dropped as duplicates: published during the run, or deleted
    /// from the stream within the duplicate window.
    pub dropped: u64,
}

/// Why reconciling ended early. Republished messages stay on the stream; run it again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The span begins before the retention of the consumers, so messages could be handled twice.
    /// Nothing was read or published.
    #[error(
        "the span begins at {}, but consumers have records of handled messages only since {}; older messages would be handled a second \
         time; begin the span later, or state the actual retention of the consumers",
        in_text(*from), in_text(*remembered)
    )]
    Forgotten {
        /// [`Span::from`].
        from: OffsetDateTime,
        /// Earliest allowed start.
        remembered: OffsetDateTime,
    },
    /// The stream could not be read.
    #[error("the stream could not be read")]
    Log(#[source] PublishError),
    /// The database failed, or took more than a minute for 1,000 messages ([`StoreError::Silent`]).
    #[error("outbox store failed")]
    Store(#[source] StoreError),
    /// The broker rejected a message.
    #[error("the broker did not accept a lost message")]
    Publish(#[source] PublishError),
}

/// Counts missing messages without publishing.
///
/// # Errors
///
/// [`ReconcileError::Log`] and [`ReconcileError::Store`].
pub async fn missing(
    store: &impl OutboxAdmin,
    log: &impl StreamLog,
    span: Span,
) -> Result<Reconciled, ReconcileError> {
    let mut pages = Pages::start(store, log, span).await?;
    while pages.next().await?.is_some() {}
    Ok(pages.report)
}

/// Republishes missing messages one by one. Relays may run concurrently. Cancel-safe: run it again.
///
/// `consumers_remember` is the shortest retention of all consumers (`InboxConfig::retention`,
/// default 15 days). Consumers handle older messages a second time, so the span may not begin
/// earlier. [`Duration::MAX`]: no bound, for consumers with strategy `sequence`.
///
/// # Errors
///
/// [`ReconcileError`]; the first failure of the broker ends reconciling.
pub async fn reconcile(
    store: &impl OutboxAdmin,
    publisher: &impl Publisher,
    log: &impl StreamLog,
    span: Span,
    consumers_remember: Duration,
) -> Result<Reconciled, ReconcileError> {
    refuse_what_is_forgotten(span, consumers_remember)?;
    let mut pages = Pages::start(store, log, span).await?;
    while let Some(missing) = pages.next().await? {
        for message in missing {
            match publisher.publish(&message).await {
                Ok(receipt) if receipt.duplicate => pages.report.dropped += 1,
                Ok(_) => pages.report.published += 1,
                Err(error) => return Err(ReconcileError::Publish(error)),
            }
        }
    }
    if pages.report.missing > 0 {
        tracing::warn!(report = ?pages.report, "messages were missing on the stream");
    }
    Ok(pages.report)
}

fn in_text(time: OffsetDateTime) -> String {
    let text = time.to_offset(UtcOffset::UTC).format(&Rfc3339);
    text.unwrap_or_else(|_| time.to_string())
}

fn refuse_what_is_forgotten(span: Span, consumers_remember: Duration) -> Result<(), ReconcileError> {
    let remembered = time::Duration::try_from(consumers_remember)
        .ok()
        .and_then(|duration| OffsetDateTime::now_utc().checked_sub(duration));
    match remembered {
        Some(remembered) if span.from < remembered => Err(ReconcileError::Forgotten {
            from: span.from,
            remembered,
        }),
        _ => Ok(()),
    }
}

struct Pages<'a, S> {
    store: &'a S,
    span: Span,
    on_stream: HashSet<MessageId>,
    after: Option<MessageId>,
    report: Reconciled,
}

impl<'a, S: OutboxAdmin> Pages<'a, S> {
    async fn start(store: &'a S, log: &impl StreamLog, span: Span) -> Result<Self, ReconcileError> {
        // The stream is read before the outbox. A message published between the two reads looks
        // missing, and the broker drops its copy.
        let on_stream = log
            .message_ids(span.from - CLOCK_SLACK)
            .await
            .map_err(ReconcileError::Log)?;
        Ok(Self {
            store,
            span,
            on_stream,
            after: None,
            report: Reconciled::default(),
        })
    }

    async fn next(&mut self) -> Result<Option<Vec<Message>>, ReconcileError> {
        let Span { from, until } = self.span;
        let page = self.store.published(from, until, self.after, PAGE);
        let page = within(PAGE_TIMEOUT, "published messages could not be read", page).await;
        let page = page.map_err(ReconcileError::Store)?;
        let Some(last) = page.last() else {
            return Ok(None);
        };
        self.after = Some(last.id);
        self.report.compared += page.len() as u64;
        let mut missing: Vec<Message> = page
            .into_iter()
            .filter(|message| !self.on_stream.contains(&message.id))
            .collect();
        missing.sort_by_key(|message| message.sequence);
        self.report.missing += missing.len() as u64;
        Ok(Some(missing))
    }
}
