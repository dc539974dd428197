//! Compares outbox, stream and inboxes over a span of recording times.
//!
//! Terms, for the events of the span:
//!
//! - **committed**: a row that is no replayed copy.
//! - **on the stream**: a committed event with a stream message, stored at earliest an hour before
//!   the span. Further messages of the event are copies.
//! - **lost**: published, but missing on the stream.
//! - **expired**: as lost, but published before messages that the stream has removed since: by
//!   limits, a purge or a loss.
//! - **ghost**: a message without a row although the outbox keeps that time, or with another
//!   aggregate or sequence than its row.
//! - **hole**: a sequence without row and message: between two kept rows, or after the last row
//!   of an idle aggregate (at most 10,000 aggregates).
//! - **inversion**: stored after a later sequence of its aggregate.
//! - **effect**: an inbox row with status handled.
//! - **missing**: acknowledged without an inbox row, although the inbox has rows of first attempts
//!   for earlier and later events of the type.
//! - **passed**: acknowledged without an inbox row, effect unknown.
//! - **open**: neither acknowledged nor in the inbox.
//!
//! Unknown to the proof:
//!
//! - A proof cannot tell whether the event of a hole was published.
//! - A proof does not see events whose rows were purged, forgotten or deleted after publishing
//!   (`unrecorded` counts such events that are still on the stream).
//! - A proof cannot tell whether a missing logged message was published.
//! - A proof does not see effects without an inbox row under the event id: strategies `natural`,
//!   `external`, `sequence` and `constraint`, business keys, missing handlers, deleted rows.
//!
//! Inbox rows written only after a failure or redelivery count as effects and prove nothing about
//! other events. Sequences that restart after a purge look like inversions. A message belongs to
//! this outbox if its source and aggregate type match a committed event.
//!
//! A proof is no snapshot: outbox, stream, ack floors and inboxes are read in this order, so
//! messages published or handled in between cause no false finding. Open transactions are not seen.
//! Clocks may differ by an hour.
//!
//! Invariant: a proof only reads, with bounded memory: more than [`FACTS_MAX`] facts are rejected.
//! For single aggregates see [`Timeline`](crate::admin::Timeline).

mod fact;
mod read;
mod report;
mod weigh;

use outbox::core::{OutboxReader, PublishError, Retention, StoreError, StreamReader};
use outbox::inbox::EventOutcomes;
use sea_orm::DbErr;
use time::OffsetDateTime;

pub use report::{ConsumerBooks, Findings, Found, HoleOf, Holes, OutboxBooks, Proof, StreamBooks, Verdict};

/// Maximum number of facts, each about 150 bytes of memory.
pub const FACTS_MAX: usize = 1 << 22;

/// Input of a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofRequest {
    /// Start of the span, inclusive.
    pub since: OffsetDateTime,
    /// End of the span, exclusive.
    pub until: OffsetDateTime,
    /// Retention of rows. Default: [`RowsKept::All`].
    pub rows_kept: RowsKept,
    /// Findings listed per kind. Default: 20.
    pub shown: usize,
    /// Stream name for suggested commands. Default: none.
    pub stream: Option<String>,
    /// Maximum facts. Default: [`FACTS_MAX`].
    pub facts_max: usize,
}

impl ProofRequest {
    /// A request with defaults.
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
}

/// Retention of rows of published messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsKept {
    /// All rows are kept.
    All,
    /// Rows recorded since this time.
    Since(OffsetDateTime),
    /// No rows: deleted on publishing.
    Nothing,
}

impl RowsKept {
    /// The shortest of this retention and the retentions registered by relays.
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

    /// The rows that a relay's retention keeps at time `now`.
    pub fn of(retention: Retention, now: OffsetDateTime) -> Self {
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

    /// Whether rows recorded at this time are kept.
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
    /// Ack floor.
    pub floor: u64,
}

/// Why a proof failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// Outbox error.
    #[error("the outbox could not be read")]
    Store(#[from] StoreError),
    /// Stream error.
    #[error("the stream could not be read")]
    Stream(#[from] PublishError),
    /// Inbox error.
    #[error("the inbox of consumer `{consumer}` could not be read")]
    Inbox {
        /// Consumer name.
        consumer: String,
        /// Cause.
        source: DbErr,
    },
    /// The span exceeds a memory bound.
    #[error("the span has more than {max} rows and messages; choose a shorter span")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

/// Proves a span. `inboxes` are all databases with inboxes of the stream. The closure `floors`
/// reads the consumers' ack floors after the stream was read; its error becomes a reason of the
/// proof.
///
/// # Errors
///
/// [`ProofError`].
///
/// # Cancellation
///
/// A dropped proof leaves nothing behind.
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
            "no inbox tables were found; add an `[[outbox]]` with their database, `schema` and `prefix` to the file",
            "outbox doctor",
        );
    }
    Ok(proof)
}
