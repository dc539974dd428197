//! The seam to the database: the outbox as the relay sees it. Implementations: PostgreSQL, MySQL/MariaDB and SQLite (`outbox-sea-orm`), and memory (`outbox-testing`). Each runs `outbox_testing::conformance::store`. Not here:
//! recording, because each integration writes messages in the application's own transaction in its own way.
//!
//! # The states of a message
//!
//! ```text
//!              ┌──────────── retry ────────────┐
//!              ▼                               │
//! recorded ─► pending ──────► published     dead (a dead letter)
//!              │   ▲             ▲             ▲
//!              ▼   │ none left   │             │
//!             waiting ───────────┴─────────────┘
//! ```
//!
//! A relay finds *pending* messages by scanning them, mostly in the order of their row ids. The
//! scan must not meet the same row
//! for ever, only to find each time that it may not be published yet. So the store sets such messages aside:
//!
//! * A *block* on an aggregate says until when nothing of it may be published. Its cause is a failure's back-off, a
//!   delayed message, or a dead letter that halts the aggregate until an operator acts.
//! * Messages of a blocked aggregate that the scan meets become *waiting*.
//! * When the block *ends*, the relay fetches the aggregate's waiting messages in order.
//! * A pause of an aggregate type blocks the aggregates of the messages that a relay meets, until it is finished.
//! * With the last waiting message the store removes the block, unless the aggregate is halted, and the scan finds the
//!   aggregate's messages again.
//!
//! So each row is met a bounded number of times, however many messages wait.
//! An unsequenced message asks for no order: it neither blocks its aggregate nor is blocked with it, and waits alone.

mod admin;
mod audit;
mod fault;
mod pause;
mod reader;
mod relay;
mod setup;

use std::error::Error;
use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::message::{Aggregate, Message, MessageId};

pub use admin::{
    BACKLOG_COUNT_MAX, Backlog, BlockedAggregate, Forgotten, MessageStatus, OutboxAdmin, PageFrom, Place,
    Selection, StoredMessage,
};
pub use audit::{
    INTENT_CHARS_MAX, Intent, OPERATION_MESSAGES_MAX, Operation, OperationFilter, OperationId, OperationKind,
    OperationMessages, OperationScope, OutboxAudit, ScopeError,
};
pub use fault::RowFault;
pub use pause::{Pause, PauseRequest, UNPAUSED_WAIT};
pub use reader::{
    AggregateHead, FoundMessage, FoundPublished, OutboxReader, PartitionOwner, PublishedFound,
    PublishedSearch,
};
pub use relay::{
    Announcement, ExpiredRelay, Fitness, LiveRelay, OwnerId, Registration, RelayMode, RelayTrouble, Relays,
    TroubleClass,
};
pub use setup::{SetupKind, SetupProblem};

/// Leases partitions, returns due messages, and records verdicts on them.
///
/// The relay is generic over this trait; it is not meant for `dyn`.
///
/// # Contract
///
/// * **Exclusive.** Two live leases never cover the same partition. The store's clock decides which leases are live.
/// * **Fenced.** Each acquisition raises the partition's epoch. [`settle`](Self::settle) accepts nothing under an older
///   epoch, nor under a released lease. Rows and blocks change only by `settle` and by operators ([`OutboxAudit`]), and
///   purging deletes only published rows.
/// * **Ordered.** [`fetch`](Self::fetch) and [`fetch_waiting`](Self::fetch_waiting) return the messages of one
///   aggregate in the order of their sequences, whatever their row ids are. They never return a message while an
///   earlier one (by sequence) is pending or waiting, unless the earlier one is in flight or returned before it.
/// * **Durable.** A message that is returned survives a crash of the database. A store whose database shows other
///   commits as well makes them durable first.
/// * **Bounded.** One fetch looks at no more than `limit` pending rows beyond those in flight, or at one row of each
///   leased partition if that is more. Messages that wait, are delayed, or belong to partitions leased by others do not
///   raise this bound.
/// * **Short.** No method leaves a transaction open after it returns.
/// * **Abandoned calls.** A relay drops the future of a call that is not answered in time
///   (`RelayConfig::store_timeout`). The store then closes whatever the call waited for, above all a connection that
///   fell silent, so that the next call does not meet it again.
/// * **Cancel-safe.** Dropping a future of this trait never leaves a transaction open or a write half-done. A lease
///   that was acquired by a dropped call runs out on its own.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait OutboxStore: Send + Sync + 'static {
    /// Looks for failures that are foreseeable before the first message: the server's version, the tables, settings
    /// that break a promise. Returns warnings.
    ///
    /// `deletes`: whether the relay will delete messages that are published. One that keeps them needs no right to.
    ///
    /// [`StoreError::Setup`] if the store cannot work until somebody acts. A database that only reads for now, as during
    /// a failover, is [`StoreError::Database`], as one that is away.
    fn preflight(&self, deletes: bool) -> impl Future<Output = Result<Vec<SetupProblem>, StoreError>> + Send;

    /// Announces that this relay is alive for `ttl` from now, and registers what it does. Returns the number of live relays by the fitness that each announced
    /// last, this one included, and how many of them registered another destination. A registration without a destination agrees with every other.
    /// An announcement that would last for longer than [`LEASE_TTL_MAX`] counts as expired.
    fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> impl Future<Output = Result<Relays, StoreError>> + Send;

    /// Lists the relays that are alive, in the order of their ids, which is that of their starts.
    fn relays(&self) -> impl Future<Output = Result<Vec<LiveRelay>, StoreError>> + Send;

    /// Acquires up to `max` partitions that nobody owns, for `ttl`, and returns their leases.
    ///
    /// A lease that ends later than [`LEASE_TTL_MAX`] from now was granted before the store's clock was set back. The store shortens such leases, so that they
    /// expire within [`LEASE_TTL_MAX`] unless their owner renews them. [`StoreError::Setup`] if a partition has no lease that could be acquired, because its
    /// row is missing.
    fn acquire(
        &self,
        owner: OwnerId,
        ttl: Duration,
        max: u16,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Extends the given leases by `ttl` from now. Returns those that were still owned; a lease that ran out is not revived.
    fn renew(
        &self,
        owner: OwnerId,
        leases: &[Lease],
        ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Releases the given leases at once, so that other relays need not wait for their end. Stale leases are ignored.
    fn release(
        &self,
        owner: OwnerId,
        leases: &[Lease],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Releases all leases of the owner and withdraws its announcement. A relay calls this when it stops.
    fn leave(&self, owner: OwnerId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the first pending messages of each leased partition by row id. Those of one aggregate
    /// are in the order of their sequences.
    fn fetch(&self, request: FetchRequest<'_>) -> impl Future<Output = Result<Fetched, StoreError>> + Send;

    /// Returns waiting messages that are due: the oldest ones of each aggregate whose block has ended, and unsequenced messages whose own time has come. Those that
    /// have been due for longest come first.
    fn fetch_waiting(
        &self,
        request: WaitingRequest<'_>,
    ) -> impl Future<Output = Result<Fetched, StoreError>> + Send;

    /// Records, in one transaction, the verdicts on messages whose partition is still owned under the given epoch.
    /// A verdict on a row that is neither pending nor waiting, or that has another message id,
    /// changes nothing, so settling may be repeated; only [`Verdict::Blocked`] counts a failure
    /// each time. Stores pass error texts through [`storable_error`].
    ///
    /// [`StoreError::Refused`] if the database refuses one of the verdicts. The relay finds that one by settling fewer at a
    /// time, records the others, and tries it again later.
    fn settle(
        &self,
        leases: &[Lease],
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Deletes published messages that were both recorded and published longer ago than `request.older_than`, and
    /// deduplication keys that were recorded longer ago than `request.keys_older_than`; nothing else. A store that drops
    /// whole days may keep messages up to a day longer. A key outlives its message if that is deleted earlier.
    fn purge(&self, request: PurgeRequest) -> impl Future<Output = Result<Purged, StoreError>> + Send;

    /// All pauses: first that of all messages, then by aggregate type. Also those that have ended and that nobody has finished yet
    /// ([`Pause::stands`]).
    fn pauses(&self) -> impl Future<Output = Result<Vec<Pause>, StoreError>> + Send;

    /// Finishes pauses that have ended: makes due what they held, then removes them. Relays and operators call it; several may at once. Returns whether
    /// more is left: one call releases a bounded number of aggregates and unsequenced messages. A message keeps its own time if it has one.
    fn finish_pauses(&self) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Counts waiting messages and dead letters.
    fn backlog(&self) -> impl Future<Output = Result<Backlog, StoreError>> + Send;
}

/// The longest time for which a lease or an announcement is granted. What ends later was granted before the store's clock was set back.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(600);

/// Ownership of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The partition, in `0..PARTITIONS`.
    pub partition: u16,
    /// The epoch of this acquisition. It fences off earlier owners that were paused.
    pub epoch: i64,
}

/// The arguments of [`OutboxStore::fetch`].
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// Only messages of these partitions.
    pub leases: &'a [Lease],
    /// At most this many rows, counting those that have to wait.
    pub limit: NonZeroU32,
    /// Stop after the row at which the payloads exceed this many bytes. At least one row is returned.
    pub bytes: usize,
    /// Due rows that the relay has fetched and not settled, sorted. The fetch leaves them out and
    /// treats them as returned before. Rows of [`Fetched::waits`] must not be listed here: messages
    /// behind them would look due.
    pub in_flight: &'a [RowKey],
}

/// The arguments of [`OutboxStore::fetch_waiting`].
#[derive(Debug, Clone, Copy)]
pub struct WaitingRequest<'a> {
    /// Only messages of these partitions.
    pub leases: &'a [Lease],
    /// At most this many rows.
    pub limit: NonZeroU32,
    /// At most this many of one aggregate.
    pub per_aggregate: NonZeroU32,
    /// As [`FetchRequest::bytes`].
    pub bytes: usize,
    /// As [`FetchRequest::in_flight`].
    pub in_flight: &'a [RowKey],
    /// Leave these aggregates out, because the relay has enough of their messages in flight.
    pub excluding: &'a [Aggregate],
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fetched {
    /// Messages that may be published. Those of one aggregate are in sequence.
    pub due: Vec<FetchedRow>,
    /// Messages that may not be published yet, because they are delayed or their aggregate is blocked, as settlements
    /// with [`Verdict::Waits`]. The relay settles them at once, so that no fetch meets them again before their time.
    pub waits: Vec<Settlement>,
    /// Whether a bound ended the fetch, so that there may be more.
    pub more: bool,
}

/// A due message and the data that the relay needs to settle it.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedRow {
    /// The row id.
    pub row_id: i64,
    /// The message id, readable even if the rest of the row is not; `None` if it is damaged as
    /// well.
    pub id: Option<MessageId>,
    /// The partition it belongs to.
    pub partition: u16,
    /// The aggregate, readable even if the rest of the row is not.
    pub aggregate: Aggregate,
    /// Whether the message keeps the order of its aggregate.
    pub sequenced: bool,
    /// Attempts used so far: failures that were the message's own fault.
    pub attempts: u32,
    /// Failures so far, of any kind. The back-off grows with them.
    pub failures: u32,
    /// Whether the message was waiting rather than pending.
    pub waited: bool,
    /// Time since the recording, by the store's clock; never negative.
    pub age: Duration,
    /// The message, which a reader of the log keeps as well; or the reason why the row cannot be published.
    pub message: Result<Arc<Message>, RowFault>,
}

/// The record of what became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The broker confirmed the message.
    Published {
        /// Whether the store keeps the row, marked as published, until it is purged. If false, the store deletes the
        /// row.
        keep: bool,
    },
    /// The message was not tried, because it may not be published yet.
    ///
    /// | message | effect |
    /// |---|---|
    /// | sequenced and delayed | it blocks its aggregate and waits |
    /// | sequenced, in a blocked aggregate | it waits |
    /// | unsequenced and delayed | it waits alone |
    /// | any other | none |
    ///
    /// If it is then the oldest waiting message of an aggregate that is not halted, the block lasts until the message's
    /// time, or until now if the message is not delayed.
    Waits,
    /// The message was not tried, because its aggregate type is paused. It waits, and its aggregate is blocked until the pause is finished
    /// ([`OutboxStore::finish_pauses`]); an unsequenced message waits alone. Nothing is counted. A halted aggregate stays halted.
    ///
    /// The store looks for the pause in the same transaction, so that nothing is held by a pause that is finished already. If none stands, the message waits
    /// for [`UNPAUSED_WAIT`]: the relay learns of the end with its next renewal, and until then must not meet the message again and again.
    Paused,
    /// The message failed, or others must come first. It waits, and its aggregate is blocked for `delay`; an
    /// unsequenced message waits alone. A halted aggregate stays halted.
    Blocked {
        /// Length of the block; zero ends it at once.
        delay: Duration,
        /// The error, for people; counts a failure. `None` if nothing failed.
        error: Option<String>,
        /// Whether the failure was the message's own fault; counts an attempt as well.
        attempt: bool,
    },
    /// The message used up an attempt and becomes a dead letter, which operators can see.
    Dead {
        /// The error, for people.
        error: String,
        /// Whether the message halts its aggregate until it is retried or skipped. If another message halts the
        /// aggregate already, this one does not become a dead letter yet: its attempt counts, and it waits for its
        /// turn. No effect on an unsequenced message.
        halt: bool,
    },
}

/// The arguments of [`OutboxStore::purge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Delete only messages that were both recorded and published longer ago than this; `None` deletes none.
    pub older_than: Option<Duration>,
    /// Delete deduplication keys that were recorded longer ago than this, whatever became of their messages.
    pub keys_older_than: Duration,
    /// Look only at messages with a larger id. Pass [`Purged::next`] of the round's last call, or `None` to begin a
    /// round.
    pub after: Option<MessageId>,
    /// Look at no more messages than this. A day that is dropped as a whole counts as one message.
    pub limit: NonZeroU32,
}

/// The result of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    /// Number of messages deleted.
    pub deleted: u64,
    /// Where the next call goes on; `None` if nothing old enough is left.
    pub next: Option<MessageId>,
}

/// Longest error text that is stored, in characters.
pub const ERROR_CHARS_MAX: usize = 1000;

/// Bounds an error text and removes NUL, so that every store can store it: an error text that cannot be stored would
/// fail the handling of the failure itself.
#[must_use]
pub fn storable_error(error: &str) -> String {
    error
        .chars()
        .filter(|c| *c != '\0')
        .take(ERROR_CHARS_MAX)
        .collect()
}

/// Waits for a call for at most `bound`. After that the outcome is unknown, as after any other error. A connection that
/// fell silent answers neither yes nor no.
///
/// # Errors
///
/// The error of the call, or [`StoreError::Silent`] after `bound`.
pub async fn within<T>(
    bound: Duration,
    context: &'static str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let silent = |_| {
        Err(StoreError::Silent {
            context,
            waited: bound,
        })
    };
    tokio::time::timeout(bound, call).await.unwrap_or_else(silent)
}

impl StoreError {
    /// A problem that an operator has to solve, see [`SetupProblem::new`].
    pub fn setup(kind: SetupKind, seen: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::Setup(SetupProblem::new(kind, seen, repair))
    }
}

/// Why a call of the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database failed or could not be reached. Try again later.
    #[error("{context}")]
    Database {
        /// What could not be done.
        context: &'static str,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The database answered, and refused the statement for its own sake: a missing right, a constraint, a value. The
    /// call had no effect, and the same call fails again until somebody acts. Never for what time repairs: a lost
    /// connection, a deadlock, a server that starts, stops or only reads.
    #[error("{context}")]
    Refused {
        /// What could not be done.
        context: &'static str,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// No answer came in time. Whether the call took effect is unknown.
    #[error("{context}: no answer within {waited:?}")]
    Silent {
        /// What could not be done.
        context: &'static str,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The store cannot work until somebody acts: a table is missing, the server is too old, it refuses the login, or its certificate is not trusted.
    #[error("{0}")]
    Setup(SetupProblem),
    /// The database holds something that this library did not write.
    #[error("outbox is not as this version wrote it: {context}")]
    Corrupt {
        /// What was found, and where.
        context: String,
    },
}

/// Identifies a row of the outbox.
///
/// The row id alone is not enough. A database assigns a row id again if its counter is set back,
/// for example by a data-only restore or logical replication, or if a crash loses the end of the
/// log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// The row id.
    pub row_id: i64,
    /// The message id; `None` if the row holds no readable one.
    pub id: Option<MessageId>,
}

/// A verdict on a fetched message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The row id.
    pub row_id: i64,
    /// The message id. The verdict holds only for the row that has this id as well; `None` compares
    /// the row id alone.
    pub id: Option<MessageId>,
    /// The partition it belongs to.
    pub partition: u16,
    /// Whether the message was waiting rather than pending; see [`FetchedRow::waited`].
    pub waited: bool,
    /// The verdict.
    pub verdict: Verdict,
}

impl Settlement {
    /// The row.
    #[must_use]
    pub fn key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: self.id,
        }
    }
}

impl FetchedRow {
    /// The row.
    #[must_use]
    pub fn key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: self.id,
        }
    }

    /// This verdict on the row.
    #[must_use]
    pub fn with_verdict(&self, verdict: Verdict) -> Settlement {
        Settlement {
            row_id: self.row_id,
            id: self.id,
            partition: self.partition,
            waited: self.waited,
            verdict,
        }
    }
}
