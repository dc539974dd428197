//! Compares outbox, stream and inboxes over a span of recording times.
//!
//! Invariant: everything committed in the span is on the stream, in order, and took effect or
//! became a dead letter. The ledger counts each deviation:
//!
//! | word | meaning |
//! |---|---|
//! | committed | a row of the outbox that is not a replayed copy |
//! | on the stream | a committed event with a message on the stream, stored at most an hour before the span or later; further messages are copies |
//! | lost | the row is published, but the stream does not have the message |
//! | expired | as lost, but the stream has removed messages stored up to an hour after the publishing: by limits, by a purge or by a loss |
//! | ghost | a message on the stream without a row, although the outbox keeps all rows of that time, or with another aggregate or sequence than the row |
//! | hole | a sequence with neither a row nor a message. It lies between two sequences with rows that the outbox keeps, or after the last row of an aggregate that has recorded nothing since. At most 10,000 aggregates are compared with their last sequence |
//! | inversion | an event stored on the stream after a later sequence of its aggregate |
//! | effect | an inbox row with status handled |
//! | missing | an acknowledged event without a row, between two events of the same type with rows of first attempts |
//! | passed | an acknowledged event without a row: its effect is unknown |
//! | open | an event neither acknowledged nor in the inbox |
//!
//! The proof cannot know:
//!
//! - whether the event of a hole was published before its row was deleted;
//! - events with rows that were purged, forgotten or deleted after publishing (`unrecorded`
//!   counts those still on the stream);
//! - whether an absent message for a log relay was published, because its row does not record
//!   publishing;
//! - effects without a row under the event id, which count as `passed`: strategies `natural`,
//!   `external`, `sequence` and `constraint`, business keys, missing handlers, and rows deleted
//!   by the inbox.
//!
//! Rows written only after a failure or redelivery count as effects, but prove nothing about
//! other events. Strategy `message_id` writes such rows too. Missing effects after the last row
//! of a first attempt are `passed`, because the handler or its strategy may have changed.
//! Sequences that restart after an aggregate was forgotten look like inversions. A message
//! belongs to this outbox if its source and aggregate type match a committed event of the span.
//!
//! The result is not a snapshot. Outbox, stream, consumer floors and inboxes are read in this
//! order, so concurrent progress is not reported as a fault. A suspected ghost is looked up in
//! the outbox again. Transactions that stay open past the end of the reading are not seen.
//! Clocks of writers, database and broker may differ by an hour.
//!
//! Invariant: memory is bounded; a span with more than [`FACTS_MAX`] facts is rejected. Nothing
//! is changed. For single aggregates see [`Timeline`](crate::Timeline).

mod fact;
mod read;
mod report;
mod weigh;

use outbox_core::{OutboxReader, PublishError, Retention, StoreError, StreamReader};
use outbox_inbox::EventOutcomes;
use sea_orm::DbErr;
use time::OffsetDateTime;

pub use report::{ConsumerBooks, Findings, Found, HoleOf, Holes, OutboxBooks, Proof, StreamBooks, Verdict};

/// Maximum number of rows and messages of a span. Each takes about 150 bytes of memory.
pub const FACTS_MAX: usize = 1 << 22;

/// Input of a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProofRequest {
    /// Start of the span, inclusive, by recording time.
    pub since: OffsetDateTime,
    /// End of the span, exclusive.
    pub until: OffsetDateTime,
    /// Since when the outbox keeps all rows. Default: [`RowsKept::All`].
    pub rows_kept: RowsKept,
    /// Number of findings listed per kind. Default: 20.
    pub shown: usize,
    /// Stream name, for suggested commands. Default: none.
    pub stream: Option<String>,
    /// Maximum number of rows and messages. Default: [`FACTS_MAX`].
    pub facts_max: usize,
}

impl ProofRequest {
    /// A request for a span, with defaults.
    #[must_use]
    pub fn new(since: OffsetDateTime, until: OffsetDateTime) -> Self {
        Self {
            since,
            until,
            rows_kept: RowsKept::All,
            shown: 20,
            stream: None,
            facts_max: FACTS_MAX,
        }
    }

    /// Sets the stream name for suggested commands.
    #[must_use]
    pub fn stream(mut self, name: impl Into<String>) -> Self {
        self.stream = Some(name.into());
        self
    }

    /// Sets the maximum number of rows and messages.
    #[must_use]
    pub fn facts_max(mut self, facts_max: usize) -> Self {
        self.facts_max = facts_max;
        self
    }

    /// Sets since when the outbox keeps all rows.
    #[must_use]
    pub fn rows_kept(mut self, rows_kept: RowsKept) -> Self {
        self.rows_kept = rows_kept;
        self
    }

    /// Sets the number of findings listed per kind.
    #[must_use]
    pub fn shown(mut self, shown: usize) -> Self {
        self.shown = shown;
        self
    }
}

/// Since when the outbox keeps all rows of published messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowsKept {
    /// No rows are deleted.
    All,
    /// All rows recorded at this time or later are kept.
    Since(OffsetDateTime),
    /// Rows are deleted on publishing.
    Nothing,
}

impl RowsKept {
    /// The shortest of this value and the retentions registered by live and dead relays.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn or_registered(self, store: &impl OutboxReader) -> Result<Self, StoreError> {
        let live = store.relays().await?.into_iter();
        let live = live.filter_map(|relay| relay.registration.retention);
        let dead = store.expired_relays().await?.into_iter();
        let dead = dead.filter_map(|relay| relay.registration.retention);
        let now = OffsetDateTime::now_utc();
        let all = live.chain(dead).map(|retention| Self::of(retention, now));
        Ok(all.fold(self, Self::shortest))
    }

    fn of(retention: Retention, now: OffsetDateTime) -> Self {
        match retention {
            Retention::Keep => Self::All,
            Retention::Delete => Self::Nothing,
            Retention::KeepFor(time) => {
                let since = time::Duration::try_from(time).ok();
                let since = since.and_then(|time| now.checked_sub(time));
                since.map_or(Self::All, Self::Since)
            }
        }
    }

    fn shortest(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => Self::Nothing,
            (Self::Since(one), Self::Since(other)) => Self::Since(one.max(other)),
            (Self::All, kept) | (kept, Self::All) => kept,
        }
    }

    /// Whether rows of published messages recorded at this time are kept.
    #[must_use]
    pub fn keeps(self, recorded_at: OffsetDateTime) -> bool {
        match self {
            Self::All => true,
            Self::Since(kept) => recorded_at >= kept,
            Self::Nothing => false,
        }
    }
}

/// Ack floor of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerFloor {
    /// Consumer name.
    pub consumer: String,
    /// Stream sequence up to which the consumer has acknowledged every message of its filters.
    pub floor: u64,
}

/// Why no proof was possible. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// Reading the outbox failed.
    #[error("the outbox could not be read")]
    Store(#[from] StoreError),
    /// Reading the stream failed.
    #[error("the stream could not be read")]
    Stream(#[from] PublishError),
    /// Reading an inbox failed.
    #[error("the inbox of consumer `{consumer}` could not be read")]
    Inbox {
        /// Consumer name.
        consumer: String,
        /// Cause.
        source: DbErr,
    },
    /// The span exceeds a memory bound.
    #[error("the span has more than {max} {what}; choose a shorter one")]
    TooMany {
        /// What exceeds the bound.
        what: &'static str,
        /// The bound.
        max: usize,
    },
}

/// Creates the ledger of a span. `inboxes` are all databases with inbox tables of the stream's
/// consumers. `floors` is called after the stream was read; its error text is added as a reason
/// why the proof cannot tell.
///
/// # Errors
///
/// [`ProofError`].
///
/// # Cancellation
///
/// Leaves nothing behind.
pub async fn prove(
    store: &impl OutboxReader,
    stream: &impl StreamReader,
    inboxes: &[EventOutcomes],
    floors: impl AsyncFnOnce() -> Result<Vec<ConsumerFloor>, String>,
    request: &ProofRequest,
) -> Result<Proof, ProofError> {
    let mut reading = read::Reading::new(request);
    reading.outbox(store).await?;
    let extent = reading.stream(stream).await?;
    let floors = floors().await;
    let (floors, unseen) = match floors {
        Ok(floors) => (floors, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let has_inbox = reading.inboxes(inboxes, &floors).await?;
    let facts = reading.facts();
    let mut proof = weigh::weigh(store, &facts, extent, &floors, request).await?;
    if let Some(error) = unseen {
        proof.add_unseen(
            format!("the consumers of the stream cannot be listed: {error}"),
            "outbox consumers list",
        );
    }
    if !floors.is_empty() && !has_inbox {
        proof.add_unseen(
            "no database that was asked has tables of inboxes; give the file an outbox with that database, `schema` and `prefix`",
            "outbox doctor",
        );
    }
    Ok(proof)
}
