//! Operations: changes of operators that are written down with who made them, why, and how far they are.
//!
//! Invariant: an operation and what it has changed are written in the same transactions, so one never exists without the other. Not here: who may make a change.

mod scope;

use std::fmt;
use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64};

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Forgotten, OutboxReader, PauseRequest, StoreError, StoredMessage};
use crate::message::{Aggregate, MessageId};

pub use scope::{OperationScope, ScopeError};

/// Most messages that an operation names; see [`OutboxAudit::messages_of`].
pub const OPERATION_MESSAGES_MAX: usize = 1_000;

/// Longest name of an actor, and longest reason, in characters. Longer ones are cut.
pub const INTENT_CHARS_MAX: usize = 1_000;

/// Makes changes as operations, and reads the operations that were made.
///
/// # Contract
///
/// * **One transaction.** Each batch of a change, its count and the operation's position are one transaction. After a crash or an error all of a batch is there, or
///   nothing of it. An operation is written down with the first thing that it changes; one that found nothing leaves no trace.
/// * **Resumable.** [`advance`](Self::advance) goes on where the operation stands, in whatever process it began. No message is taken twice by one operation, even if
///   several callers advance it at once: each batch compares the position and moves it.
/// * **Counted once.** If several operations take the same dead letter, one of them changes it, and that one counts it.
/// * **Bounded.** A replay takes no row that was recorded after its beginning, so it never copies its own copies.
/// * **On `Err`.** The batches that were committed stay, and the outcome of the last one is unknown. Call again with the same operation: it goes on behind them.
/// * **Setup.** If the table of operations is missing, a change is refused with [`StoreError::Setup`] before anything is changed.
///
/// Operations are kept until somebody deletes them.
pub trait OutboxAudit: OutboxReader {
    /// Takes the next messages of a retry, skip or replay: at most `at_most`, in the order of their row ids, in transactions of at most 1,000. Returns the operation
    /// as it stands then; call again until [`Operation::is_finished`].
    ///
    /// For the change of each message see [`OperationKind`]. If the operation is written down
    /// already, the written position and counts apply, and those of `operation` do not.
    ///
    /// # Errors
    ///
    /// [`StoreError::Setup`] for an operation of another kind. Otherwise see the contract.
    fn advance(
        &self,
        operation: &Operation,
        at_most: NonZeroU32,
    ) -> impl Future<Output = Result<Operation, StoreError>> + Send;

    /// Ends the block of an aggregate now instead of waiting out the back-off. A delayed message
    /// keeps its time. Returns false, and writes nothing down, if the aggregate is halted or not
    /// blocked.
    fn resume_as(
        &self,
        aggregate: &Aggregate,
        operation: &Operation,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Deletes all that the outbox holds of these aggregates: published messages, dead letters that halt nothing, the
    /// deduplication keys of both, and the last sequence. For the erasure of personal data. One transaction, which reads
    /// all messages of the outbox once. At most 1,000 aggregates at a time.
    ///
    /// An aggregate is left as it is while one of its messages is pending or waiting, or while it is halted: wait, retry
    /// or skip first. Nothing is written down if all aggregates are left. Deduplication keys whose message was deleted
    /// earlier run out by themselves.
    ///
    /// # Price
    ///
    /// If a forgotten aggregate records again, its numbers begin at 1 again. **A consumer with strategy `sequence` that
    /// has handled more takes them for handled, and skips them without a word**, until it has forgotten the aggregate
    /// too. So forget what does not come back. Other strategies recognise events by their ids. In the strong mode of
    /// JetStream, each message is searched for on its subject until the numbers are higher than before. What was
    /// published stays on the stream, and in the consumers' tables.
    fn forget_as(
        &self,
        aggregates: &[Aggregate],
        operation: &Operation,
    ) -> impl Future<Output = Result<Forgotten, StoreError>> + Send;

    /// Pauses publishing; see [`Pause`](super::Pause). A pause of the same scope is replaced, so its
    /// end can be moved. The aggregate type need not have recorded anything yet.
    ///
    /// Returns false, and changes nothing, if the operation is written down already. So a caller who
    /// lost the answer can repeat the call; a pause that was ended meanwhile does not begin again.
    fn pause_as(
        &self,
        request: &PauseRequest,
        operation: &Operation,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Ends the pause of this aggregate type, or with `None` that of all messages. Returns false, and
    /// writes nothing down, if no such pause stands, or if the operation is written down already.
    ///
    /// [`OutboxStore::finish_pauses`](super::OutboxStore::finish_pauses) releases the held messages.
    /// Relays call it with their next renewal if the caller does not. If another pause covers the
    /// same messages, it goes on.
    fn unpause_as(
        &self,
        aggregate_type: Option<&str>,
        operation: &Operation,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes down an operation whose effects are elsewhere, such as on the stream. It runs until [`finish`](Self::finish). Writing it down again changes nothing.
    fn write_down(&self, operation: &Operation) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Says that an operation that was [written down](Self::write_down) has ended, and how many things it has changed. Does nothing if it had ended before.
    fn finish(&self, id: OperationId, changed: u64) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Lists at most `limit` operations, the last one first. [`OperationFilter::before`] asks for the next page.
    fn operations(
        &self,
        filter: &OperationFilter,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<Operation>, StoreError>> + Send;

    /// Reads an operation; `None` if there is none, or if it has changed nothing yet.
    fn operation(
        &self,
        id: OperationId,
    ) -> impl Future<Output = Result<Option<Operation>, StoreError>> + Send;

    /// Reads what became of the first [`OPERATION_MESSAGES_MAX`] messages that a retry or skip took, or of the first copies of a replay.
    fn messages_of(
        &self,
        id: OperationId,
    ) -> impl Future<Output = Result<OperationMessages, StoreError>> + Send;
}

/// The id of an operation: a UUID v7. Later operations have larger ids, as far as the clocks of operators agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(Uuid);

impl OperationId {
    /// A fresh id.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id as a UUID.
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

/// Who makes a change, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Intent {
    /// Who: a user, or a program.
    pub actor: String,
    /// Why, in their words.
    pub reason: Option<String>,
}

impl Intent {
    /// The intent of an actor who gives no reason.
    #[must_use]
    pub fn of(actor: impl AsRef<str>) -> Self {
        Self {
            actor: stored(actor.as_ref()),
            reason: None,
        }
    }

    /// Gives a reason. An empty one is none.
    #[must_use]
    pub fn because(mut self, reason: impl AsRef<str>) -> Self {
        self.reason = Some(stored(reason.as_ref())).filter(|reason| !reason.is_empty());
        self
    }
}

/// A text as every database takes it.
fn stored(text: &str) -> String {
    let storable = text.trim().chars().filter(|c| *c != '\0');
    storable.take(INTENT_CHARS_MAX).collect()
}

/// What an operation does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// Dead letters become pending again with no attempts used, and the halts of their aggregates
    /// end. Retried messages come after messages of their aggregate that were published meanwhile
    /// (policy continue).
    Retry,
    /// Aggregates go on without the dead letters that halt them. The messages stay dead letters and
    /// can still be retried. A dead letter that halts nothing is not counted, so a repetition counts
    /// nothing.
    Skip,
    /// Copies of published messages or dead letters are recorded, to be published behind everything
    /// recorded so far. A copy has a new message id, so that the broker accepts the copy. It keeps
    /// event id, sequence and time, so that consumers recognise the event. A logged message counts as
    /// published once the stored position of the log has passed it.
    Replay,
    /// The back-off of an aggregate ends.
    Resume,
    /// What the outbox holds of aggregates is deleted.
    Forget,
    /// Publishing of an aggregate type, or of everything, stops for a while.
    Pause,
    /// A pause of publishing ends.
    Unpause,
    /// What the stream has lost is published again.
    Reconcile,
    /// The database's log is set up.
    InitLog,
    /// The database's log is taken down.
    DropLog,
    /// Dead letters of consumers are to be tried again.
    RetryLetters,
    /// Dead letters of consumers are not to be tried again.
    CancelRetry,
    /// Dead letters of consumers are deleted.
    DiscardLetters,
    /// Dead letters of an aggregate are erased.
    EraseLetters,
    /// A consumer stops in all its processes.
    PauseConsumer,
    /// The pause of a consumer ends.
    ResumeConsumer,
    /// Something that this version does not know.
    Other(String),
}

impl OperationKind {
    const KNOWN: [Self; 16] = [
        Self::Retry,
        Self::Skip,
        Self::Replay,
        Self::Resume,
        Self::Forget,
        Self::Pause,
        Self::Unpause,
        Self::Reconcile,
        Self::InitLog,
        Self::DropLog,
        Self::RetryLetters,
        Self::CancelRetry,
        Self::DiscardLetters,
        Self::EraseLetters,
        Self::PauseConsumer,
        Self::ResumeConsumer,
    ];

    /// The kind as a short lower-case word, as it is stored and shown.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Replay => "replay",
            Self::Resume => "resume",
            Self::Forget => "forget",
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::Reconcile => "reconcile",
            Self::InitLog => "init-log",
            Self::DropLog => "drop-log",
            Self::RetryLetters => "retry-letters",
            Self::CancelRetry => "cancel-retry",
            Self::DiscardLetters => "discard-letters",
            Self::EraseLetters => "erase-letters",
            Self::PauseConsumer => "pause-consumer",
            Self::ResumeConsumer => "resume-consumer",
            Self::Other(kind) => kind,
        }
    }

    /// Whether [`OutboxAudit::advance`] does it.
    #[must_use]
    pub fn takes_messages(&self) -> bool {
        matches!(self, Self::Retry | Self::Skip | Self::Replay)
    }
}

impl From<&str> for OperationKind {
    fn from(text: &str) -> Self {
        let known = Self::KNOWN.into_iter().find(|kind| kind.as_str() == text);
        known.unwrap_or_else(|| Self::Other(text.to_owned()))
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A change of an operator: who, what, why, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// What it does.
    pub kind: OperationKind,
    /// Who makes it, and why.
    pub intent: Intent,
    /// What it is to take.
    pub scope: OperationScope,
    /// The last row id that it has taken. `None` if it has taken none.
    pub position: Option<i64>,
    /// For a replay that has begun: the last row id that it may take.
    pub until: Option<i64>,
    /// How many messages it has changed, copied or deleted; for other kinds, how many things.
    pub changed: u64,
    /// When it began, by the store's clock; `None` if it is not written down.
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    pub finished_at: Option<OffsetDateTime>,
}

impl Operation {
    /// A new operation. It is written down with the first thing that it changes.
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

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished_at.is_some()
    }

    /// How many messages it may still change; `None` if there is no bound.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        let first = self.scope.first.map(NonZeroU64::get);
        first.map(|first| first.saturating_sub(self.changed))
    }
}

/// A filter on operations. The default selects all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperationFilter {
    /// Only operations that began at this time or later.
    pub since: Option<OffsetDateTime>,
    /// Only operations of this actor.
    pub actor: Option<String>,
    /// Only operations of this kind.
    pub kind: Option<OperationKind>,
    /// Only operations with a smaller id: the next page behind the last one of a page.
    pub before: Option<OperationId>,
}

/// What became of the messages of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperationMessages {
    /// How many messages the operation names.
    pub named: u64,
    /// Those that the outbox still holds, by their row ids. Others were deleted after publishing, or forgotten.
    pub messages: Vec<StoredMessage>,
}

impl OperationMessages {
    /// What a store has found of the messages that an operation names.
    #[must_use]
    pub fn new(named: &[MessageId], messages: Vec<StoredMessage>) -> Self {
        Self {
            named: named.len() as u64,
            messages,
        }
    }
}
