//! The transaction log of the database, as a source of messages.

pub mod source;

use std::future::Future;

use time::OffsetDateTime;

use crate::message::{Aggregate, MessageId};
use crate::store::{FetchedRow, Pause, PurgeRequest, Purged, SetupProblem, StoreError};

/// Position in the log; increases by commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

/// A log of committed messages, and the table with their rows.
///
/// # Contract
///
/// * Each committed message of the log comes once per reading, unless the stored position has
///   passed it. Transactions come in commit order, their messages in recording order.
/// * A reading that finds no further messages returns its position ([`LogEvent::Idle`]): at its
///   start and after writes to other tables.
/// * **Cancel-safe.** A dropped future leaves no open transaction and no half write.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait MessageLog: Send + Sync + 'static {
    /// The reader type.
    type Reader: LogReader;

    /// As [`OutboxStore::preflight`](crate::OutboxStore::preflight).
    fn preflight(&self) -> impl Future<Output = Result<Vec<SetupProblem>, StoreError>> + Send;

    /// Starts reading after the stored position. `None` if another relay reads the log.
    ///
    /// A lost, replaced or foreign log is recreated. Logged messages that the old log may not have
    /// delivered become pending in the table: messages may come twice, but none is lost.
    fn open(&self) -> impl Future<Output = Result<Option<Self::Reader>, StoreError>> + Send;

    /// Returns a log position after everything committed before this call. A reader reaches this
    /// position even if no further message is committed.
    fn written(&self) -> impl Future<Output = Result<Position, StoreError>> + Send;

    /// Reads table rows that decide whether log messages may be published. Takes no locks.
    fn look(&self, request: LookRequest<'_>) -> impl Future<Output = Result<Look, StoreError>> + Send;

    /// Moves logged messages that the stored position has not passed to the table, as pending.
    ///
    /// Returns the messages that are now in the table or certainly deleted. The caller retries
    /// other messages, which the table does not show yet.
    fn adopt(&self, messages: &[Logged]) -> impl Future<Output = Result<Vec<MessageId>, StoreError>> + Send;

    /// As [`OutboxStore::purge`](crate::OutboxStore::purge), for logged messages that the stored
    /// position has passed. Retention counts from the original recording. Keeps deduplication keys.
    fn purge(&self, request: PurgeRequest) -> impl Future<Output = Result<Purged, StoreError>> + Send;

    /// As [`OutboxStore::pauses`](crate::OutboxStore::pauses).
    fn pauses(&self) -> impl Future<Output = Result<Vec<Pause>, StoreError>> + Send;
}

/// A log reader. Dropping it frees the log for other relays.
pub trait LogReader: Send + 'static {
    /// Returns the next entry. Cancel-safe. An error ends the reading.
    fn next(&mut self) -> impl Future<Output = Result<LogEvent, StoreError>> + Send;

    /// Stores that all messages up to `position` were published or moved to the table, and frees
    /// the log up to `position`. Fails if another reading has begun.
    fn confirm(&mut self, position: Position) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the disk space kept for the log.
    fn retained(&mut self) -> impl Future<Output = Result<Retained, StoreError>> + Send;

    /// Position up to which messages may have been moved to the table ([`MessageLog::adopt`])
    /// before this reading. Later messages were not moved, except by a replaced reader that still
    /// runs.
    fn adopted_to(&self) -> Position;

    /// Ends the reading and frees the log at once.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// A log entry.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEvent {
    /// A message; its [`Commit`](Self::Commit) follows.
    Message(LoggedMessage),
    /// The end of a transaction. Reading continues after this position.
    Commit(Position),
    /// No message follows up to this position.
    Idle(Position),
}

impl LogEvent {
    /// The entry's payload bytes.
    #[must_use]
    pub fn payload(&self) -> usize {
        match self {
            Self::Message(message) => message.payload(),
            Self::Commit(_) | Self::Idle(_) => 0,
        }
    }
}

/// A logged message.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedMessage {
    /// The message id, even of an unreadable row.
    pub id: MessageId,
    /// The row as if fetched from the table at first: attempts and failures 0, `waited` false,
    /// `age` zero.
    pub row: FetchedRow,
    /// Recording transaction's number.
    pub transaction: u64,
    /// Smallest stored position at which the message counts as passed. It follows the ends of
    /// earlier transactions and is at most the end of this message's transaction.
    pub passed_from: Position,
    /// Recording time by database clock.
    pub created_at: OffsetDateTime,
    /// Delay's end.
    pub available_at: Option<OffsetDateTime>,
}

impl LoggedMessage {
    /// The message's payload bytes.
    #[must_use]
    pub fn payload(&self) -> usize {
        self.row
            .message
            .as_ref()
            .map_or(0, |message| message.payload.len())
    }

    /// Returns the message's key for [`MessageLog`].
    #[must_use]
    pub fn logged(&self) -> Logged {
        Logged {
            id: self.id,
            transaction: self.transaction,
            passed_from: self.passed_from,
        }
    }
}

/// Logged message key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Logged {
    /// The message id.
    pub id: MessageId,
    /// As [`LoggedMessage::transaction`].
    pub transaction: u64,
    /// As [`LoggedMessage::passed_from`].
    pub passed_from: Position,
}

/// Disk space kept for a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retained {
    /// Bytes kept.
    pub bytes: u64,
    /// Bytes until the database drops the log; `None`: never.
    pub safe: Option<u64>,
}

/// Arguments of [`MessageLog::look`].
#[derive(Debug, Clone, Copy, Default)]
pub struct LookRequest<'a> {
    /// Aggregates that may have earlier messages in the table.
    pub aggregates: &'a [Aggregate],
    /// Messages to check.
    pub messages: &'a [Logged],
}

/// Answer to a [`LookRequest`], as one snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// Requested aggregates that are blocked or have a pending message.
    pub first: Vec<Aggregate>,
    /// Whether any aggregate is blocked or message pending.
    pub any: bool,
    /// Whether more than [`PENDING_MAX`] messages are pending, with unknown aggregates.
    pub is_flooded: bool,
    /// Requested messages that are still logged.
    pub logged: Vec<MessageId>,
    /// Requested messages that are probably not visible in the table yet.
    pub unseen: Vec<MessageId>,
    /// Snapshot time by database clock.
    pub now: OffsetDateTime,
}

/// Maximum pending messages in the table. Above, no log message is published.
pub const PENDING_MAX: usize = 10_000;
