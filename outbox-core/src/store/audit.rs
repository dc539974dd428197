//! Operations: changes by operators, stored with actor, reason and progress.
//!
//! Invariant: an operation and its changes are written in the same transactions.

mod scope;

use std::fmt;
use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64};

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Forgotten, OutboxReader, PauseRequest, StoreError, StoredMessage};
use crate::message::{Aggregate, MessageId};

pub use scope::{OperationScope, ScopeError};

/// Maximum message ids stored per operation.
pub const OPERATION_MESSAGES_MAX: usize = 1_000;

/// Maximum characters of actor and reason.
pub const INTENT_CHARS_MAX: usize = 1_000;

/// Makes changes as operations and reads stored operations.
///
/// # Contract
///
/// * **One transaction** per batch writes change, count and position. An operation is stored with
///   its first change.
/// * **Resumable.** [`advance`](Self::advance) continues at the operation's stored position, in any
///   process. Concurrent callers process no message twice.
/// * **Counted once.** Only the operation that changes a dead letter counts it.
/// * **Bounded.** A replay copies no row recorded after its start, hence no copy of its own.
/// * **On `Err`.** Committed batches stay; the outcome of the last batch is unknown. Call again to
///   continue.
/// * **Setup.** Without the table of operations, [`StoreError::Setup`] and no change.
///
/// Operations are kept until deleted.
pub trait OutboxAudit: OutboxReader {
    /// Processes at most `at_most` messages of a retry, skip or replay, in row id order, in
    /// transactions of at most 1,000. Returns the new state; call again until
    /// [`Operation::is_finished`]. If the operation is stored already, its stored position and
    /// count are used instead of those in `operation`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Setup`] if the operation's kind is not retry, skip or replay.
    fn advance(
        &self,
        operation: &Operation,
        at_most: NonZeroU32,
    ) -> impl Future<Output = Result<Operation, StoreError>> + Send;

    /// Ends the back-off of an aggregate now. A delayed message keeps its time. Returns false and
    /// stores nothing if the aggregate is halted or not blocked.
    fn resume_as(
        &self,
        aggregate: &Aggregate,
        operation: &Operation,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Erases aggregates' personal data: published messages, dead letters that halt nothing, their
    /// deduplication keys, and the last sequence. At most 1,000 aggregates per call, in one
    /// transaction that reads all messages once.
    ///
    /// Skips aggregates that are halted or have pending or waiting messages; if all aggregates are
    /// skipped, no operation is stored. Copies on the stream and in tables of consumers stay.
    /// Deduplication keys of already deleted messages stay until they expire.
    ///
    /// # Price
    ///
    /// If a forgotten aggregate records again, its sequence restarts at 1. **A consumer with
    /// strategy `sequence` silently skips messages below its highest number** until the aggregate
    /// is forgotten in that consumer's database. In JetStream's strong mode, such messages cost a
    /// search on their subject. So forget only aggregates that have ended.
    fn forget_as(
        &self,
        aggregates: &[Aggregate],
        operation: &Operation,
    ) -> impl Future<Output = Result<Forgotten, StoreError>> + Send;

    /// Starts or replaces the [`Pause`](super::Pause) with this scope. Returns false and changes
    /// nothing if the operation is already stored: repeating does not restart an ended pause.
    fn pause_as(
        &self,
        request: &PauseRequest,
        operation: &Operation,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Ends the pause of this aggregate type, or with `None` the pause of all messages. Returns
    /// false and stores nothing without such a pause, or if the operation is already stored.
    /// [`OutboxStore::finish_pauses`](super::OutboxStore::finish_pauses) releases the held
    /// messages, at the latest with a relay's next renewal.
    fn unpause_as(
        &self,
        aggregate_type: Option<&str>,
        operation: &Operation,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Stores an operation with effects outside the outbox, running until [`finish`](Self::finish).
    /// Idempotent.
    fn write_down(&self, operation: &Operation) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Finishes an operation of [`write_down`](Self::write_down) with its number of changes.
    /// Idempotent.
    fn finish(&self, id: OperationId, changed: u64) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Lists at most `limit` operations, newest first, with ids below [`OperationFilter::before`].
    fn operations(
        &self,
        filter: &OperationFilter,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<Operation>, StoreError>> + Send;

    /// Reads an operation; `None` if the operation changed nothing.
    fn operation(
        &self,
        id: OperationId,
    ) -> impl Future<Output = Result<Option<Operation>, StoreError>> + Send;

    /// Reads the first [`OPERATION_MESSAGES_MAX`] messages of a retry or skip, or copies of a
    /// replay.
    fn messages_of(
        &self,
        id: OperationId,
    ) -> impl Future<Output = Result<OperationMessages, StoreError>> + Send;
}

/// Operation id: UUID v7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(Uuid);

impl OperationId {
    /// A fresh id.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The UUID.
    #[must_use]
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for OperationId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Actor and reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Intent {
    /// User or program; at most [`INTENT_CHARS_MAX`] characters.
    pub actor: String,
    /// The reason; at most [`INTENT_CHARS_MAX`] characters.
    pub reason: Option<String>,
}

impl Intent {
    /// Intent without reason.
    #[must_use]
    pub fn of(actor: impl AsRef<str>) -> Self {
        Self {
            actor: stored(actor.as_ref()),
            reason: None,
        }
    }

    /// Sets the reason; empty: none.
    #[must_use]
    pub fn because(mut self, reason: impl AsRef<str>) -> Self {
        self.reason = Some(stored(reason.as_ref())).filter(|reason| !reason.is_empty());
        self
    }
}

/// Returns text that every database accepts: without NUL, and of limited length.
fn stored(text: &str) -> String {
    let storable = text.trim().chars().filter(|c| *c != '\0');
    storable.take(INTENT_CHARS_MAX).collect()
}

/// An operation's kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// Dead letters become pending with no attempts used, and the halts of their aggregates end. A
    /// retried message follows messages published after its failure.
    Retry,
    /// Aggregates continue without their halting dead letters. Skipped dead letters can still be
    /// retried.
    Skip,
    /// Publishes copies of published messages or dead letters, with a new message id but the same
    /// event id, sequence and time. Logged messages up to the stored log position count as
    /// published.
    Replay,
    /// Ends aggregate back-offs.
    Resume,
    /// Deletes aggregates' messages.
    Forget,
    /// Pauses publishing.
    Pause,
    /// Continues publishing.
    Unpause,
    /// Republishes messages that the broker has lost.
    Reconcile,
    /// Sets up the database log.
    InitLog,
    /// Removes the database log.
    DropLog,
    /// Schedules retries of consumers' dead letters.
    RetryLetters,
    /// Cancels scheduled retries of consumers' dead letters.
    CancelRetry,
    /// Deletes consumers' dead letters.
    DiscardLetters,
    /// Erases an aggregate's dead letters at consumers.
    EraseLetters,
    /// Pauses a consumer.
    PauseConsumer,
    /// Resumes a consumer.
    ResumeConsumer,
    /// From another library version.
    Other(String),
}

impl OperationKind {
    const STORED: [(Self, &str); 16] = [
        (Self::Retry, "retry"),
        (Self::Skip, "skip"),
        (Self::Replay, "replay"),
        (Self::Resume, "resume"),
        (Self::Forget, "forget"),
        (Self::Pause, "pause"),
        (Self::Unpause, "unpause"),
        (Self::Reconcile, "reconcile"),
        (Self::InitLog, "init-log"),
        (Self::DropLog, "drop-log"),
        (Self::RetryLetters, "retry-letters"),
        (Self::CancelRetry, "cancel-retry"),
        (Self::DiscardLetters, "discard-letters"),
        (Self::EraseLetters, "erase-letters"),
        (Self::PauseConsumer, "pause-consumer"),
        (Self::ResumeConsumer, "resume-consumer"),
    ];

    /// The stored word.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Other(kind) => kind,
            kind => {
                let mut stored = Self::STORED.into_iter();
                stored
                    .find(|(known, _)| known == kind)
                    .map_or("", |(_, word)| word)
            }
        }
    }

    /// Whether [`OutboxAudit::advance`] processes operations of this kind.
    #[must_use]
    pub fn takes_messages(&self) -> bool {
        matches!(self, Self::Retry | Self::Skip | Self::Replay)
    }
}

impl From<&str> for OperationKind {
    fn from(text: &str) -> Self {
        let known = Self::STORED.into_iter().find(|(_, word)| *word == text);
        known.map_or_else(|| Self::Other(text.to_owned()), |(kind, _)| kind)
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A change by an operator, with its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// The id.
    pub id: OperationId,
    /// Kind of change.
    pub kind: OperationKind,
    /// Actor and reason.
    pub intent: Intent,
    /// Items to process.
    pub scope: OperationScope,
    /// Last processed row id.
    pub position: Option<i64>,
    /// Last row id of a replay, set at its start.
    pub until: Option<i64>,
    /// Changed item count.
    pub changed: u64,
    /// Start by store clock.
    pub started_at: Option<OffsetDateTime>,
    /// End; `None` while running.
    pub finished_at: Option<OffsetDateTime>,
}

impl Operation {
    /// A new operation.
    #[must_use]
    pub fn new(kind: OperationKind, scope: OperationScope, intent: Intent) -> Self {
        Self {
            id: OperationId::fresh(),
            kind,
            intent,
            scope,
            position: None,
            until: None,
            changed: 0,
            started_at: None,
            finished_at: None,
        }
    }

    /// Whether the operation has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished_at.is_some()
    }

    /// Number of messages that may still change; `None` if the operation has no maximum.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        let first = self.scope.first.map(NonZeroU64::get);
        first.map(|first| first.saturating_sub(self.changed))
    }
}

/// A filter on operations; the default selects all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperationFilter {
    /// Earliest start.
    pub since: Option<OffsetDateTime>,
    /// The actor.
    pub actor: Option<String>,
    /// The kind.
    pub kind: Option<OperationKind>,
    /// Operation ids below this, for paging.
    pub before: Option<OperationId>,
}

/// An operation's messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperationMessages {
    /// Stored id count.
    pub named: u64,
    /// Messages in the outbox, by row id.
    pub messages: Vec<StoredMessage>,
}

impl OperationMessages {
    /// Compares the ids recorded by the operation (`named`) with the rows found for them
    /// (`messages`).
    #[must_use]
    pub fn new(named: &[MessageId], messages: Vec<StoredMessage>) -> Self {
        Self {
            named: named.len() as u64,
            messages,
        }
    }
}
