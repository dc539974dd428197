//! The ledger of a span: what was committed is on the stream, in order, and has had its effect or became a dead letter.
//!
//! The words, for the events of a span, which is a span of times of recording:
//!
//! | word | means |
//! |---|---|
//! | committed | a row of the outbox that is no replayed copy |
//! | on the stream | a committed event of which the stream holds a message, stored an hour before the span or later; further ones are copies |
//! | lost | a row that says published, whose message the stream does not hold |
//! | expired | the same, where the stream has let go what it stored until an hour after that time: its limits or a purge took it, or it is lost |
//! | ghost | a message on the stream whose row the outbox does not have although it keeps all rows of that time, or that names another aggregate or number than the row |
//! | hole | a number of an aggregate that has neither a row nor a message on the stream. The number stands between two numbers with rows whose time the outbox keeps, or behind the last row of an aggregate that has recorded nothing since the span. At most 10,000 aggregates are compared with their last number |
//! | inversion | an event that came onto the stream for the first time behind a later number of its aggregate |
//! | effect | a row of an inbox that says handled |
//! | missing | no row, although the consumer has acknowledged the event, and has rows of first attempts for an earlier and a later event of that type in the span |
//! | passed | no row, and the consumer has acknowledged the event: its effect cannot be known |
//! | open | no row, and the consumer has not acknowledged the event |
//!
//! **Cannot be known**: whether the event of a hole was published before its row was deleted; events
//! whose rows were deleted after publishing, purged or forgotten (`unrecorded` counts those that the
//! stream holds); a message for a log relay that the stream does not hold, because the row of such a
//! message does not say whether it was published; the effects of strategies that write no rows (`natural`,
//! `external`, `sequence`, `constraint`), or write them under a business key, of handlers that a consumer does not have, and of rows that an inbox has forgotten: they are
//! all `passed`. These strategies write a row after a failure or a redelivery, which counts as an effect and shows nothing of other events. So does the row that
//! strategy `message_id` writes then. Effects that are missing behind the last row of a first attempt are `passed`, too: the handler or its strategy may have changed. Numbers that begin again after an aggregate was forgotten look like
//! inversions. A message counts as one of this outbox if its source and the type of its aggregate are those of a committed event of the span.
//!
//! **Not promised: one moment.** Relays and consumers go on. The outbox is read first, then the stream, the consumers' floors, and the inboxes, so what happens
//! meanwhile is not taken for a fault; a ghost is looked for in the outbox once more. A transaction that is open for longer than the end of the span is past
//! is not seen. Clocks of writers, database and broker may differ by an hour.
//!
//! Invariants: memory is bounded: a span of more than [`FACTS_MAX`] rows and messages is refused. Nothing is changed
//! anywhere. Not here: single aggregates, see [`Timeline`](crate::Timeline).

mod fact;
mod read;
mod report;
mod weigh;

use outbox_core::{OutboxReader, PublishError, Retention, StoreError, StreamReader};
use outbox_inbox::EventOutcomes;
use sea_orm::DbErr;
use time::OffsetDateTime;

pub use report::{ConsumerBooks, Findings, Found, HoleOf, Holes, OutboxBooks, Proof, StreamBooks, Verdict};

/// Most rows of the outbox, messages of the stream and rows of inboxes of a span. Each takes about 150 bytes of memory.
pub const FACTS_MAX: usize = 1 << 22;

/// What to prove.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProofRequest {
    /// Messages recorded at this time or later.
    pub since: OffsetDateTime,
    /// Messages recorded before this time.
    pub until: OffsetDateTime,
    /// Since when the outbox keeps all rows. Default: [`RowsKept::All`].
    pub rows_kept: RowsKept,
    /// How many of each finding are named. Default: 20.
    pub shown: usize,
    /// The name of the stream, for the commands that look at it. Default: none.
    pub stream: Option<String>,
    /// Most rows and messages. Default: [`FACTS_MAX`].
    pub facts_max: usize,
}

impl ProofRequest {
    /// The proof of a span.
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

    /// Sets the name of the stream, for the commands that look at it.
    #[must_use]
    pub fn stream(mut self, name: impl Into<String>) -> Self {
        self.stream = Some(name.into());
        self
    }

    /// Sets the most rows and messages.
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

    /// Sets how many of each finding are named.
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
    /// It deletes none.
    All,
    /// Rows that were recorded at this time or later are kept.
    Since(OffsetDateTime),
    /// Rows are deleted when they are published.
    Nothing,
}

impl RowsKept {
    /// The shortest of this and the retentions that relays registered, live or dead ones.
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

    /// Whether the outbox keeps the rows of published messages that were recorded at this time.
    #[must_use]
    pub fn keeps(self, recorded_at: OffsetDateTime) -> bool {
        match self {
            Self::All => true,
            Self::Since(kept) => recorded_at >= kept,
            Self::Nothing => false,
        }
    }
}

/// How far a consumer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerFloor {
    /// The consumer.
    pub consumer: String,
    /// The stream sequence up to which it has acknowledged everything that it wants.
    pub floor: u64,
}

/// Why nothing could be proven. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The outbox could not be read.
    #[error("the outbox could not be read")]
    Store(#[from] StoreError),
    /// The stream could not be read.
    #[error("the stream could not be read")]
    Stream(#[from] PublishError),
    /// An inbox could not be read.
    #[error("the inbox of consumer `{consumer}` could not be read")]
    Inbox {
        /// The consumer.
        consumer: String,
        /// The cause.
        source: DbErr,
    },
    /// There is more than this program keeps in memory.
    #[error("the span has more than {max} {what}; choose a shorter one")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
}

/// Draws up the ledger of a span. `inboxes` are those of all databases in which consumers of the stream keep their rows. `floors` is called when the stream has
/// been read; its error is a text for people, and is noted as a reason why nothing can be told.
///
/// # Errors
///
/// [`ProofError`].
///
/// # Cancellation
///
/// Nothing is left behind.
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
