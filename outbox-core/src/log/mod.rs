//! The transaction log of the database, as a source of messages.

pub mod source;

use std::future::Future;

use time::OffsetDateTime;

use crate::message::{Aggregate, MessageId};
use crate::store::{FetchedRow, Pause, PurgeRequest, Purged, SetupProblem, StoreError};

/// Log position, increasing by commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

/// A log of committed messages, and the table with their rows.
///
/// # Contract
///
/// * Each logged, committed message comes once per reading, unless the stored position has passed
///   it: transactions in commit order, each in recording order.
/// * A reading without further messages returns its position ([`LogEvent::Idle`]), at its start and
///   after unrelated writes.
/// * **Cancel-safe.** A dropped future leaves no open transaction and no half write.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait MessageLog: Send + Sync + 'static {
    /// The reader type.
    type Reader: LogReader;

    /// As [`OutboxStore::preflight`](crate::OutboxStore::preflight).
    fn preflight(&self) -> impl Future<Output = Result<Vec<SetupProblem>, StoreError>> + Send;

    /// Starts reading after the stored position. `None` if another relay reads.
    ///
    /// A lost, replaced or foreign log is recreated. The table adopts every logged message that the
    /// old log may not have delivered: messages may come twice, but none is lost.
    fn open(&self) -> impl Future<Output = Result<Option<Self::Reader>, StoreError>> + Send;

    /// A log position after everything committed before this call. A running reading reaches it
    /// without further messages.
    fn written(&self) -> impl Future<Output = Result<Position, StoreError>> + Send;

    /// Reads the table before log messages are published. Takes no locks.
    fn look(&self, request: LookRequest<'_>) -> impl Future<Output = Result<Look, StoreError>> + Send;

    /// Moves logged messages that the stored position has not passed to the table, as pending.
    ///
    /// Returns the messages that are now in the table or certainly deleted. For other messages,
    /// which the table does not show yet, the caller retries.
    fn adopt(&self, messages: &[Logged]) -> impl Future<Output = Result<Vec<MessageId>, StoreError>> + Send;

    /// As [`OutboxStore::purge`](crate::OutboxStore::purge), for logged messages that the stored
    /// position has passed. Retention counts from the original recording. Keeps deduplication keys.
    fn purge(&self, request: PurgeRequest) -> impl Future<Output = Result<Purged, StoreError>> + Send;

    /// As [`OutboxStore::pauses`](crate::OutboxStore::pauses).
    fn pauses(&self) -> impl Future<Output = Result<Vec<Pause>, StoreError>> + Send;
}

/// A reading. Dropping it frees the log for other relays.
pub trait LogReader: Send + 'static {
    /// The next entry. Cancel-safe. An error ends the reading.
    fn next(&mut self) -> impl Future<Output = Result<LogEvent, StoreError>> + Send;

    /// Stores that everything up to `position` is decided, and frees the log up to there. Fails if
    /// another reading has begun.
    fn confirm(&mut self, position: Position) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Disk space kept for the log.
    fn retained(&mut self) -> impl Future<Output = Result<Retained, StoreError>> + Send;

    /// No message after this position was adopted before this reading, except by a replaced reader
    /// that still runs.
    fn adopted_to(&self) -> Position;

    /// Frees the log at once.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEvent {
    /// A message; its [`Commit`](Self::Commit) follows.
    Message(LoggedMessage),
    /// The end of a transaction. Reading continues after this position.
    Commit(Position),
    /// No messages up to this position.
    Idle(Position),
}

impl LogEvent {
    /// Payload bytes.
    #[must_use]
    pub fn payload(&self) -> usize {
        match self {
            Self::Message(message) => message.payload(),
            Self::Commit(_) | Self::Idle(_) => 0,
        }
    }
}

/// A message of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedMessage {
    /// The id, even of an unreadable row.
    pub id: MessageId,
    /// As fetched from the table: no attempts or failures, `waited` false, `age` zero.
    pub row: FetchedRow,
    /// Transaction number, for the log.
    pub transaction: u64,
    /// A stored position from here on has passed the message: at most the end of its transaction,
    /// and after the ends of earlier transactions.
    pub passed_from: Position,
    /// By the database's clock.
    pub created_at: OffsetDateTime,
    /// End of its delay.
    pub available_at: Option<OffsetDateTime>,
}

impl LoggedMessage {
    /// Payload bytes.
    #[must_use]
    pub fn payload(&self) -> usize {
        self.row
            .message
            .as_ref()
            .map_or(0, |message| message.payload.len())
    }

    /// Key for [`MessageLog`].
    #[must_use]
    pub fn logged(&self) -> Logged {
        Logged {
            id: self.id,
            transaction: self.transaction,
            passed_from: self.passed_from,
        }
    }
}

/// Key of a logged message.
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
    /// Any aggregate is blocked or any message pending.
    pub any: bool,
    /// More than [`PENDING_MAX`] messages are pending; their aggregates are unknown.
    pub is_flooded: bool,
    /// Requested, still logged messages.
    pub logged: Vec<MessageId>,
    /// Requested messages that are probably not visible in the table yet.
    pub unseen: Vec<MessageId>,
    /// The database's clock.
    pub now: OffsetDateTime,
}

/// With more pending messages in the table, no log message is published.
pub const PENDING_MAX: usize = 10_000;
