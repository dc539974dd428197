//! Publishes again what the broker lost.
//!
//! A broker can lose what it has confirmed: a stream restored from an older copy, a disk that lied, a stream deleted and made again. The outbox still
//! has what it published, for as long as [`Retention`](crate::Retention) says. Invariant: what is sent carries its own id, so running
//! twice does no harm: the broker drops what it has, and consumers recognise what they have handled. Not promised: the place in the stream
//! (what was lost comes after what was not, of one aggregate in sequence as far as the clocks of its writers agree), and what the broker remembers without
//! having it: a message that was deleted from the stream within the duplicate window is dropped as a copy. Run again after the window.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use crate::message::{Message, MessageId};
use crate::publisher::{PublishError, Publisher, StreamLog};
use crate::store::{OutboxAdmin, StoreError, within};

/// How far the clocks of database and broker may differ.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);

/// Messages read from the outbox at a time.
const PAGE: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// How long the database may take for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// What to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Messages recorded at this time or later. Costs about 50 bytes of memory for each message on the stream since then.
    pub from: OffsetDateTime,
    /// Messages recorded before this time.
    pub until: OffsetDateTime,
}

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconciled {
    /// Published messages of the outbox that were looked for on the stream.
    pub compared: u64,
    /// Of those, messages that were not there.
    pub missing: u64,
    /// Of those, messages that the broker has stored now.
    pub published: u64,
    /// Of those, messages that the broker dropped as copies: published meanwhile, or still remembered without being there.
    pub dropped: u64,
}

/// Why reconciling ended early. What was published stays published; run it again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The span begins before the time that the consumers remember, so that messages could take effect a second time. Nothing was read or published.
    #[error(
        "the span begins at {}, but consumers remember what they handled since {} only, and what is older would take effect a second \
         time; begin the span later, or say how long the consumers remember",
        in_text(*from), in_text(*remembered)
    )]
    Forgotten {
        /// [`Span::from`].
        from: OffsetDateTime,
        /// The earliest time at which the span may begin.
        remembered: OffsetDateTime,
    },
    /// The stream could not be read.
    #[error("the stream could not be read")]
    Log(#[source] PublishError),
    /// The database failed, or took longer than a minute for a page of 1,000 messages ([`StoreError::Silent`]).
    #[error("outbox store failed after {so_far:?}")]
    Store {
        /// What was done before.
        so_far: Reconciled,
        /// The cause.
        source: StoreError,
    },
    /// The broker did not take a message.
    #[error("the broker did not take a message that was lost, after {so_far:?}")]
    Publish {
        /// What was done before.
        so_far: Reconciled,
        /// The cause.
        source: PublishError,
    },
}

/// Counts what is missing, and publishes nothing.
///
/// # Errors
///
/// [`ReconcileError::Log`] and [`ReconcileError::Store`].
pub async fn missing(
    store: &impl OutboxAdmin,
    log: &impl StreamLog,
    span: Span,
) -> Result<Reconciled, ReconcileError> {
    missing_with_progress(store, log, span, &mut |_| {}).await
}

/// As [`missing`]. `progress` is told what was found so far: when the stream has been read, and after each 1,000 messages of the outbox.
///
/// # Errors
///
/// As [`missing`].
pub async fn missing_with_progress(
    store: &impl OutboxAdmin,
    log: &impl StreamLog,
    span: Span,
    progress: &mut (dyn FnMut(Reconciled) + Send),
) -> Result<Reconciled, ReconcileError> {
    let mut pages = Pages::start(store, log, span).await?;
    progress(pages.report);
    while pages.next().await?.is_some() {
        progress(pages.report);
    }
    Ok(pages.report)
}

/// Publishes what is missing, one message after the other. Relays may run meanwhile. Cancel-safe: run it again.
///
/// `consumers_remember` is the shortest time for which a consumer of these messages remembers what it handled: the shortest `InboxConfig::retention`,
/// 15 days by default. Consumers handle what they have forgotten a second time, so the span may not begin earlier. [`Duration::MAX`] sets no
/// bound: for consumers with strategy `sequence`, which never forget.
///
/// # Errors
///
/// [`ReconcileError`]; the first failure of the broker ends it.
pub async fn reconcile(
    store: &impl OutboxAdmin,
    publisher: &impl Publisher,
    log: &impl StreamLog,
    span: Span,
    consumers_remember: Duration,
) -> Result<Reconciled, ReconcileError> {
    let progress = &mut |_| {};
    reconcile_with_progress(store, publisher, log, span, consumers_remember, progress).await
}

/// As [`reconcile`]. `progress` is told what was found and published so far: when the stream has been read, after each 1,000 messages of the outbox, and after each
/// message that was published.
///
/// # Errors
///
/// As [`reconcile`].
pub async fn reconcile_with_progress(
    store: &impl OutboxAdmin,
    publisher: &impl Publisher,
    log: &impl StreamLog,
    span: Span,
    consumers_remember: Duration,
    progress: &mut (dyn FnMut(Reconciled) + Send),
) -> Result<Reconciled, ReconcileError> {
    refuse_what_is_forgotten(span, consumers_remember)?;
    let mut pages = Pages::start(store, log, span).await?;
    progress(pages.report);
    while let Some(missing) = pages.next().await? {
        progress(pages.report);
        for message in missing {
            match publisher.publish(&message).await {
                Ok(receipt) if receipt.duplicate => pages.report.dropped += 1,
                Ok(_) => pages.report.published += 1,
                Err(source) => {
                    return Err(ReconcileError::Publish {
                        so_far: pages.report,
                        source,
                    });
                }
            }
            progress(pages.report);
        }
    }
    if pages.report.missing > 0 {
        tracing::warn!(report = ?pages.report, "the stream had lost messages");
    }
    Ok(pages.report)
}

/// As a command line takes it.
fn in_text(time: OffsetDateTime) -> String {
    let text = time.to_offset(UtcOffset::UTC).format(&Rfc3339);
    // A year beyond the format is printed in another one.
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

/// The published messages of a span, a page at a time.
struct Pages<'a, S> {
    store: &'a S,
    span: Span,
    on_stream: HashSet<MessageId>,
    after: Option<MessageId>,
    report: Reconciled,
}

impl<'a, S: OutboxAdmin> Pages<'a, S> {
    async fn start(store: &'a S, log: &impl StreamLog, span: Span) -> Result<Self, ReconcileError> {
        // The outbox is read after the stream: what is published meanwhile is on the stream, and looks missing if it is not in the set.
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

    /// What is missing of the next page; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<Message>>, ReconcileError> {
        let Span { from, until } = self.span;
        let page = self.store.published(from, until, self.after, PAGE);
        let page = within(PAGE_TIMEOUT, "published messages could not be read", page).await;
        let page = page.map_err(|source| ReconcileError::Store {
            so_far: self.report,
            source,
        })?;
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
