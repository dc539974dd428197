//! A second source of messages beside the poll of the table: the transaction log of the database.
//!
//! A database writes each commit to a log, and returns the log to readers: PostgreSQL as logical
//! replication, MariaDB as its binlog. [`MessageLog`] is the contract of such a log, and [`source`]
//! the seam in the relay. `outbox-log` has the log relay and the logs of databases.

pub mod source;

use std::future::Future;

use time::OffsetDateTime;

use crate::message::{Aggregate, MessageId};
use crate::store::{FetchedRow, Pause, PurgeRequest, Purged, SetupProblem, StoreError};

/// A place in the log. Positions rise from commit to commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

/// A log of committed messages, and the table of which they are rows.
///
/// # Contract
///
/// * Every message that was recorded as logged and committed comes once in each reading, unless the
///   stored position has passed it. Messages of one transaction come together, in the order of
///   their recording, and transactions in the order of their commits.
/// * What was rolled back never comes.
/// * A reading that has nothing more to give says up to where ([`LogEvent::Idle`]), at its
///   beginning and when other things were written.
/// * **Cancel-safe.** Dropping a future of this trait never leaves a transaction open or a write
///   half-done.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait MessageLog: Send + Sync + 'static {
    /// Reads the log.
    type Reader: LogReader;

    /// Looks for failures that are foreseeable: as
    /// [`OutboxStore::preflight`](crate::OutboxStore::preflight).
    fn preflight(&self) -> impl Future<Output = Result<Vec<SetupProblem>, StoreError>> + Send;

    /// Begins to read behind the stored position, if no other relay reads. Returns `None` if one
    /// does.
    ///
    /// If the log was lost, replaced by another, or belongs to another server than the stored
    /// position, it is made anew, and the table adopts every logged message that the old log may
    /// not have given. Messages may come twice then; none is lost.
    fn open(&self) -> impl Future<Output = Result<Option<Self::Reader>, StoreError>> + Send;

    /// Everything that was committed before this call is in the log up to the returned position. A
    /// reading that is under way gets there without waiting for other messages.
    fn written(&self) -> impl Future<Output = Result<Position, StoreError>> + Send;

    /// Looks at the table before messages of the log are published. Locks nothing.
    fn look(&self, request: LookRequest<'_>) -> impl Future<Output = Result<Look, StoreError>> + Send;

    /// The table adopts the messages that are logged and that the stored position has not passed:
    /// they become pending. All others stay as they are. Only a reader that was replaced, or a call
    /// that was given up and is carried out late, asks for what is passed, and that is decided.
    /// Returns the messages that are in the table now, in any state, and the messages that the
    /// table certainly does not hold any more. A commit may be in the log before others
    /// see it in the table; such a message is not returned, and asked for again.
    fn adopt(&self, messages: &[Logged]) -> impl Future<Output = Result<Vec<MessageId>, StoreError>> + Send;

    /// As [`OutboxStore::purge`](crate::OutboxStore::purge), for logged messages that the stored
    /// position has passed. Their retention counts from their recording, that of a replayed copy
    /// from the recording of its original. Deduplication keys are left to the store.
    fn purge(&self, request: PurgeRequest) -> impl Future<Output = Result<Purged, StoreError>> + Send;

    /// The pauses, as [`OutboxStore::pauses`](crate::OutboxStore::pauses) of the table has them.
    fn pauses(&self) -> impl Future<Output = Result<Vec<Pause>, StoreError>> + Send;
}

/// A reading of the log. Dropping it leaves the log to others.
pub trait LogReader: Send + 'static {
    /// What the log holds next. Cancel-safe. After an error the reading is over.
    fn next(&mut self) -> impl Future<Output = Result<LogEvent, StoreError>> + Send;

    /// Stores that everything up to `position` is decided, and then lets the database free the log
    /// up to there. Fails if another reading has begun since.
    fn confirm(&mut self, position: Position) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How much of the database's disk the log keeps.
    fn retained(&mut self) -> impl Future<Output = Result<Retained, StoreError>> + Send;

    /// Up to where messages may have been adopted before this reading began, for the opening of the
    /// log or in an earlier reading. No message behind it was, unless by a reader that was replaced
    /// and does not know it yet. So if nothing was ever adopted, nothing has to be asked of the
    /// table.
    fn adopted_to(&self) -> Position;

    /// Ends the reading, so that another relay can begin at once.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// What the log holds next.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEvent {
    /// A message of the transaction whose [`Commit`](Self::Commit) comes next.
    Message(LoggedMessage),
    /// The end of a transaction. Reading goes on behind this position.
    Commit(Position),
    /// Nothing is left up to this position.
    Idle(Position),
}

impl LogEvent {
    /// The bytes of its payload.
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
    /// Its id in the table, readable even if the rest is not.
    pub id: MessageId,
    /// As a fetch of the table returns it: no attempts and no failures, `waited` is false, and
    /// `age` is zero.
    pub row: FetchedRow,
    /// The number of its transaction, for the log's own use.
    pub transaction: u64,
    /// A position from here on has passed the message: at most the end of its transaction, and
    /// behind the ends of earlier ones.
    pub passed_from: Position,
    /// When it was recorded, by the database's clock.
    pub created_at: OffsetDateTime,
    /// Until when it is delayed; `None` if it is not.
    pub available_at: Option<OffsetDateTime>,
}

impl LoggedMessage {
    /// The bytes of its payload.
    #[must_use]
    pub fn payload(&self) -> usize {
        self.row
            .message
            .as_ref()
            .map_or(0, |message| message.payload.len())
    }

    /// The message as calls of [`MessageLog`] name it.
    #[must_use]
    pub fn logged(&self) -> Logged {
        Logged {
            id: self.id,
            transaction: self.transaction,
            passed_from: self.passed_from,
        }
    }
}

/// A message that the log has given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Logged {
    /// Its id in the table.
    pub id: MessageId,
    /// As [`LoggedMessage::transaction`].
    pub transaction: u64,
    /// As [`LoggedMessage::passed_from`].
    pub passed_from: Position,
}

/// How much of the database's disk a log keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retained {
    /// Bytes that are kept for this reader.
    pub bytes: u64,
    /// Bytes that may still be written before the database gives the log up; `None` if it never
    /// does.
    pub safe: Option<u64>,
}

/// The arguments of [`MessageLog::look`].
#[derive(Debug, Clone, Copy, Default)]
pub struct LookRequest<'a> {
    /// Aggregates that the table may come first for.
    pub aggregates: &'a [Aggregate],
    /// Messages whose state is asked for.
    pub messages: &'a [Logged],
}

/// The table's answer to a [`LookRequest`], all of one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// Those of the aggregates that are blocked, or have a pending message.
    pub first: Vec<Aggregate>,
    /// Whether any aggregate at all is blocked, or any message pending.
    pub any: bool,
    /// Whether more than [`PENDING_MAX`] messages are pending. Then it is not known which
    /// aggregates have one.
    pub is_flooded: bool,
    /// The messages that are logged.
    pub logged: Vec<MessageId>,
    /// The messages that cannot be seen in the table yet, as far as is known.
    pub unseen: Vec<MessageId>,
    /// The database's clock.
    pub now: OffsetDateTime,
}

/// With more pending messages in the table than this, nothing of the log is published before they
/// are.
pub const PENDING_MAX: usize = 10_000;
