//! The database trait: the outbox as the relay uses it.
//!
//! Implementations: PostgreSQL, MySQL/MariaDB and SQLite (`outbox-sea-orm`), and memory
//! (`outbox-testing`). Each runs `outbox_testing::conformance::store`. Recording is not part of
//! this trait: each integration writes messages in the application's own transaction.
//!
//! # Message states
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
//! A relay scans *pending* messages, mostly in row id order. Messages that may not be published yet
//! are set aside, so the scan does not meet the same row forever:
//!
//! * A *block* on an aggregate states until when its messages may not be published. Causes: the
//!   back-off of a failure, a delayed message, or a dead letter that halts the aggregate until an
//!   operator acts.
//! * Messages of a blocked aggregate become *waiting* when the scan meets them.
//! * When the block *ends*, the relay fetches the waiting messages of the aggregate in order.
//! * A pause of an aggregate type blocks each aggregate of that type that the relay meets, until
//!   the pause is finished.
//! * With the last waiting message the store removes the block, unless the aggregate is halted. The
//!   scan then finds the messages of the aggregate again.
//!
//! So the scan meets each row a bounded number of times, however many messages wait. An unsequenced
//! message does not block its aggregate, is not blocked with it, and waits alone.

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

/// Leases partitions, returns due messages, and records verdicts.
///
/// The relay is generic over this trait; it is not meant for `dyn`.
///
/// # Contract
///
/// * **Exclusive.** Two live leases never cover the same partition. The store's clock decides which
///   leases are live.
/// * **Fenced.** Each acquisition raises the epoch of the partition. [`settle`](Self::settle)
///   rejects older epochs and released leases. Only `settle` and operators ([`OutboxAudit`]) change
///   rows and blocks. Purging deletes only published rows.
/// * **Ordered.** [`fetch`](Self::fetch) and [`fetch_waiting`](Self::fetch_waiting) return the
///   messages of one aggregate in sequence order, whatever their row ids. They never return a
///   message while a message with a lower sequence is pending or waiting, unless that message is in
///   flight or was returned before.
/// * **Durable.** A returned message survives a crash of the database. If the database shows
///   commits that are not durable yet, the store makes them durable first.
/// * **Bounded.** One fetch reads at most `limit` pending rows beyond the rows in flight, or one
///   row per leased partition if that is more. Waiting messages, delayed messages and partitions of
///   other relays do not raise this bound.
/// * **Short.** No method leaves a transaction open after it returns.
/// * **Abandoned calls.** A relay drops the future of a call that exceeds
///   `RelayConfig::store_timeout`. The store then closes the resource that the call waited for,
///   such as a silent connection, so that the next call does not use it.
/// * **Cancel-safe.** Dropping a future never leaves a transaction open or a write half done. A
///   lease acquired by a dropped call expires.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait OutboxStore: Send + Sync + 'static {
    /// Checks for foreseeable failures: server version, tables, settings that break a guarantee.
    /// Returns warnings.
    ///
    /// `deletes`: whether the relay will delete published messages, and so needs the right to.
    ///
    /// # Errors
    ///
    /// [`StoreError::Setup`] if the store cannot work until an operator acts.
    /// [`StoreError::Database`] if the database is unreachable or temporarily read-only, as during
    /// a failover.
    fn preflight(&self, deletes: bool) -> impl Future<Output = Result<Vec<SetupProblem>, StoreError>> + Send;

    /// Announces this relay as alive for `ttl` from now, with its registration. Returns the number
    /// of live relays by last announced fitness, including this relay, and how many registered
    /// another destination. A registration without a destination agrees with every other. An
    /// announcement that ends later than [`LEASE_TTL_MAX`] from now counts as expired.
    fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> impl Future<Output = Result<Relays, StoreError>> + Send;

    /// Lists live relays by id, which is the order of their starts.
    fn relays(&self) -> impl Future<Output = Result<Vec<LiveRelay>, StoreError>> + Send;

    /// Acquires up to `max` free partitions for `ttl` and returns their leases.
    ///
    /// A lease that ends later than [`LEASE_TTL_MAX`] from now was granted before the store's clock
    /// was set back. The store shortens such a lease to expire within [`LEASE_TTL_MAX`], unless its
    /// owner renews it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Setup`] if the lease row of a partition is missing.
    fn acquire(
        &self,
        owner: OwnerId,
        ttl: Duration,
        max: u16,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Extends the given leases to `ttl` from now. Returns the leases that were still owned. An
    /// expired lease is not revived.
    fn renew(
        &self,
        owner: OwnerId,
        leases: &[Lease],
        ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Releases the given leases at once. Stale leases are ignored.
    fn release(
        &self,
        owner: OwnerId,
        leases: &[Lease],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Releases all leases of the owner and withdraws its announcement. Called when a relay stops.
    fn leave(&self, owner: OwnerId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the first pending messages of each leased partition by row id. Messages of one
    /// aggregate are in sequence order.
    fn fetch(&self, request: FetchRequest<'_>) -> impl Future<Output = Result<Fetched, StoreError>> + Send;

    /// Returns due waiting messages, longest due first: the oldest messages of each aggregate with
    /// an ended block, and unsequenced messages when their own time has come.
    fn fetch_waiting(
        &self,
        request: WaitingRequest<'_>,
    ) -> impl Future<Output = Result<Fetched, StoreError>> + Send;

    /// Records verdicts in one transaction, for messages in partitions still owned under the
    /// given epoch. Returns how many verdicts were accepted.
    ///
    /// A verdict changes nothing if the row is neither pending nor waiting, or has another message
    /// id. So settling may be repeated; only [`Verdict::Blocked`] counts a failure each time.
    /// Stores pass error texts through [`storable_error`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if the database rejects one of the verdicts. The relay then settles
    /// smaller batches to isolate that verdict, records the others, and retries it later.
    fn settle(
        &self,
        leases: &[Lease],
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Deletes published messages that were both recorded and published longer ago than
    /// `request.older_than`, and deduplication keys recorded longer ago than
    /// `request.keys_older_than`. A store that drops whole days may keep messages up to a day
    /// longer. A key may outlive its message.
    fn purge(&self, request: PurgeRequest) -> impl Future<Output = Result<Purged, StoreError>> + Send;

    /// Lists all pauses, including ended pauses that are not finished yet ([`Pause::stands`]). The
    /// pause of all messages comes first, then pauses by aggregate type.
    fn pauses(&self) -> impl Future<Output = Result<Vec<Pause>, StoreError>> + Send;

    /// Finishes ended pauses: makes the held messages due, then removes the pause. A message with
    /// its own time keeps that time. Relays and operators may call this concurrently. One call
    /// releases a bounded number of aggregates and unsequenced messages; returns whether more
    /// remain.
    fn finish_pauses(&self) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Counts waiting messages and dead letters.
    fn backlog(&self) -> impl Future<Output = Result<Backlog, StoreError>> + Send;
}

/// Longest lease and announcement: 10 minutes. A later end was granted before the store's clock was
/// set back.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(600);

/// Ownership of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The partition, in `0..PARTITIONS`.
    pub partition: u16,
    /// The epoch of this acquisition; fences off earlier owners.
    pub epoch: i64,
}

/// The arguments of [`OutboxStore::fetch`].
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// Only messages of these partitions.
    pub leases: &'a [Lease],
    /// Maximum number of rows, including rows that must wait.
    pub limit: NonZeroU32,
    /// Maximum payload bytes: the fetch stops after the row that exceeds it. At least one row is
    /// returned.
    pub bytes: usize,
    /// Due rows that the relay has fetched and not settled, sorted. The fetch leaves them out and
    /// treats them as returned before. Must not contain rows of [`Fetched::waits`]: later messages
    /// would look due.
    pub in_flight: &'a [RowKey],
}

/// The arguments of [`OutboxStore::fetch_waiting`].
#[derive(Debug, Clone, Copy)]
pub struct WaitingRequest<'a> {
    /// Only messages of these partitions.
    pub leases: &'a [Lease],
    /// Maximum number of rows.
    pub limit: NonZeroU32,
    /// Maximum number of rows per aggregate.
    pub per_aggregate: NonZeroU32,
    /// As [`FetchRequest::bytes`].
    pub bytes: usize,
    /// As [`FetchRequest::in_flight`].
    pub in_flight: &'a [RowKey],
    /// Aggregates to leave out, because enough of their messages are in flight.
    pub excluding: &'a [Aggregate],
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fetched {
    /// Messages that may be published; messages of one aggregate are in sequence order.
    pub due: Vec<FetchedRow>,
    /// Messages that may not be published yet (delayed, or aggregate blocked), as settlements with
    /// [`Verdict::Waits`]. The relay settles them at once, so no fetch meets them before their
    /// time.
    pub waits: Vec<Settlement>,
    /// Whether a bound ended the fetch, so more rows may exist.
    pub more: bool,
}

/// A due message with the data for settling it.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedRow {
    /// The row id.
    pub row_id: i64,
    /// The message id, readable even if the rest of the row is not; `None` if the id is damaged
    /// too.
    pub id: Option<MessageId>,
    /// The partition of the message.
    pub partition: u16,
    /// The aggregate, readable even if the rest of the row is not.
    pub aggregate: Aggregate,
    /// Whether the message keeps the order of its aggregate.
    pub sequenced: bool,
    /// Attempts used: failures caused by the message itself.
    pub attempts: u32,
    /// Failures of any kind. The back-off grows with this number.
    pub failures: u32,
    /// Whether the message was waiting rather than pending.
    pub waited: bool,
    /// Time since recording, by the store's clock; never negative.
    pub age: Duration,
    /// The message, or the reason why the row cannot be published. Shared with the log reader.
    pub message: Result<Arc<Message>, RowFault>,
}

/// The outcome for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The broker confirmed the message.
    Published {
        /// Whether the store keeps the row, marked as published, until it is purged. Otherwise the
        /// store deletes the row.
        keep: bool,
    },
    /// The message was not sent, because it may not be published yet.
    ///
    /// | message | effect |
    /// |---|---|
    /// | sequenced and delayed | blocks its aggregate and waits |
    /// | sequenced, in a blocked aggregate | waits |
    /// | unsequenced and delayed | waits alone |
    /// | any other | none |
    ///
    /// If it becomes the oldest waiting message of an aggregate that is not halted, the block lasts
    /// until the message's time, or until now if the message is not delayed.
    Waits,
    /// The message was not sent, because its aggregate type is paused. It waits, and its aggregate
    /// is blocked until the pause is finished ([`OutboxStore::finish_pauses`]). An unsequenced
    /// message waits alone. No attempt or failure is counted. A halted aggregate stays halted.
    ///
    /// The store checks the pause in the same transaction, so a finished pause holds no message.
    /// Without a pause, the message waits for [`UNPAUSED_WAIT`]: the relay learns of the end only
    /// with its next renewal and must not meet the message again and again until then.
    Paused,
    /// The message failed, or earlier messages must come first. It waits, and its aggregate is
    /// blocked for `delay`. An unsequenced message waits alone. A halted aggregate stays halted.
    Blocked {
        /// Length of the block; zero ends it at once.
        delay: Duration,
        /// The error text, for people; counts a failure. `None` if nothing failed.
        error: Option<String>,
        /// Whether the message itself caused the failure; also counts an attempt.
        attempt: bool,
    },
    /// The message used up an attempt and becomes a dead letter.
    Dead {
        /// The error text, for people.
        error: String,
        /// Whether the message halts its aggregate until it is retried or skipped. If another
        /// message already halts the aggregate, this message does not become a dead letter yet: its
        /// attempt counts, and it waits for its turn. No effect on an unsequenced message.
        halt: bool,
    },
}

/// The arguments of [`OutboxStore::purge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Delete only messages that were both recorded and published longer ago than this; `None`
    /// deletes none.
    pub older_than: Option<Duration>,
    /// Delete deduplication keys recorded longer ago than this, whatever the state of their
    /// messages.
    pub keys_older_than: Duration,
    /// Read only messages with a larger id. Pass [`Purged::next`] of the previous call, or `None`
    /// to begin a round.
    pub after: Option<MessageId>,
    /// Maximum number of messages to read. A day that is dropped as a whole counts as one message.
    pub limit: NonZeroU32,
}

/// The result of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    /// Number of messages deleted.
    pub deleted: u64,
    /// Where the next call continues; `None` if nothing old enough is left.
    pub next: Option<MessageId>,
}

/// Maximum length of a stored error text, in characters.
pub const ERROR_CHARS_MAX: usize = 1000;

/// Truncates an error text to [`ERROR_CHARS_MAX`] and removes NUL, so that every store can store
/// it.
#[must_use]
pub fn storable_error(error: &str) -> String {
    error
        .chars()
        .filter(|c| *c != '\0')
        .take(ERROR_CHARS_MAX)
        .collect()
}

/// Waits at most `bound` for a call. After a timeout the outcome is unknown.
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
    /// A problem that an operator must solve, see [`SetupProblem::new`].
    pub fn setup(kind: SetupKind, seen: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::Setup(SetupProblem::new(kind, seen, repair))
    }
}

/// Why a call of the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database failed or was unreachable. Retry later.
    #[error("{context}")]
    Database {
        /// The failed action.
        context: &'static str,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The database rejected the statement itself: a missing right, a constraint, a value. The call
    /// had no effect and fails again until an operator acts. Never used for temporary conditions: a
    /// lost connection, a deadlock, a server that starts, stops or is read-only.
    #[error("{context}")]
    Refused {
        /// The failed action.
        context: &'static str,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The call timed out. The outcome is unknown.
    #[error("{context}: no answer within {waited:?}")]
    Silent {
        /// The failed action.
        context: &'static str,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The store cannot work until an operator acts: a missing table, an old server, a rejected
    /// login, an untrusted certificate.
    #[error("{0}")]
    Setup(SetupProblem),
    /// The database contains data that this library did not write.
    #[error("outbox is not as this version wrote it: {context}")]
    Corrupt {
        /// What was found, and where.
        context: String,
    },
}

/// Identifies a row of the outbox.
///
/// The row id alone is not unique over time: a data-only restore, logical replication, or a crash
/// that loses the end of the log can set the counter back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// The row id.
    pub row_id: i64,
    /// The message id; `None` if the row has no readable id.
    pub id: Option<MessageId>,
}

/// A verdict on a fetched message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The row id.
    pub row_id: i64,
    /// The message id: the verdict applies only to the row with this id. `None` compares the row id
    /// alone.
    pub id: Option<MessageId>,
    /// The partition of the message.
    pub partition: u16,
    /// Whether the message was waiting rather than pending; see [`FetchedRow::waited`].
    pub waited: bool,
    /// The verdict.
    pub verdict: Verdict,
}

impl Settlement {
    /// The key of the row.
    #[must_use]
    pub fn key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: self.id,
        }
    }
}

impl FetchedRow {
    /// The key of the row.
    #[must_use]
    pub fn key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: self.id,
        }
    }

    /// A settlement of this row with the verdict.
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
