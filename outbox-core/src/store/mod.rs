//! The database trait: the outbox as the relay uses it.
//!
//! Implementations: PostgreSQL, MySQL/MariaDB, SQLite (`outbox-sea-orm`) and memory
//! (`outbox-testing`). Each runs `outbox_testing::conformance::store`.
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
//! A relay scans *pending* messages, mostly in row id order. So that the scan meets each row a
//! bounded number of times, messages are set aside:
//!
//! * A *block* states until when the messages of an aggregate may not be published: because of a
//!   back-off, a delayed message, a pause, or a dead letter that halts the aggregate.
//! * Messages of a blocked aggregate become *waiting* when the scan meets them.
//! * When the block *ends*, the relay fetches the waiting messages in order.
//! * With the last waiting message the store removes the block, unless the aggregate is halted.
//!
//! An unsequenced message neither blocks its aggregate nor is blocked with it; it waits alone.

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

/// Leases partitions, returns due messages, and records verdicts. Not meant for `dyn`.
///
/// # Contract
///
/// * **Exclusive.** Two live leases never cover the same partition, by the store's clock.
/// * **Fenced.** Each acquisition raises the epoch of the partition. [`settle`](Self::settle)
///   rejects older epochs and released leases. Only `settle` and operators ([`OutboxAudit`]) change
///   rows and blocks. Purging deletes only published rows.
/// * **Ordered.** [`fetch`](Self::fetch) and [`fetch_waiting`](Self::fetch_waiting) return the
///   messages of one aggregate in sequence order. They never return a message while an earlier one
///   is pending or waiting, unless the earlier one is in flight or was returned before.
/// * **Durable.** A returned message survives a crash of the database, even if the database shows
///   commits that are not durable.
/// * **Bounded.** One fetch reads at most `limit` pending rows beyond the rows in flight, or one
///   row per leased partition if that is more. Waiting or delayed messages and foreign partitions
///   do not count.
/// * **Short.** No method leaves a transaction open.
/// * **Abandoned calls.** A relay drops a call after `RelayConfig::store_timeout`. The store then
///   closes the connection that did not answer.
/// * **Cancel-safe.** Dropping a future never leaves a transaction open or a write half done. A
///   lease acquired by a dropped call expires.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait OutboxStore: Send + Sync + 'static {
    /// Checks server version, tables, and settings that break a guarantee. Returns warnings.
    ///
    /// `deletes`: whether the relay will delete published messages, and so needs the right to.
    ///
    /// # Errors
    ///
    /// [`StoreError::Setup`] if an operator must act. [`StoreError::Database`] if the database is
    /// unreachable or temporarily read-only, as during a failover.
    fn preflight(&self, deletes: bool) -> impl Future<Output = Result<Vec<SetupProblem>, StoreError>> + Send;

    /// Announces this relay as alive for `ttl`. Returns the number of live relays by fitness,
    /// including this one, and how many registered another destination. A registration without a
    /// destination agrees with all. An announcement that ends later than [`LEASE_TTL_MAX`] from now
    /// counts as expired.
    fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> impl Future<Output = Result<Relays, StoreError>> + Send;

    /// Lists live relays by id, which is start order.
    fn relays(&self) -> impl Future<Output = Result<Vec<LiveRelay>, StoreError>> + Send;

    /// Acquires up to `max` free partitions for `ttl` and returns their leases. Shortens leases
    /// that end later than [`LEASE_TTL_MAX`] from now, because the store's clock was set back;
    /// their owner may renew them.
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

    /// Extends leases to `ttl` from now. Returns the leases still owned; an expired lease is not
    /// revived.
    fn renew(
        &self,
        owner: OwnerId,
        leases: &[Lease],
        ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Releases leases at once. Stale leases are ignored.
    fn release(
        &self,
        owner: OwnerId,
        leases: &[Lease],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Releases all leases of the owner and withdraws its announcement.
    fn leave(&self, owner: OwnerId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the first pending messages of each leased partition by row id, in sequence order per
    /// aggregate.
    fn fetch(&self, request: FetchRequest<'_>) -> impl Future<Output = Result<Fetched, StoreError>> + Send;

    /// Returns due waiting messages, longest due first: the oldest messages of aggregates with an
    /// ended block, and due unsequenced messages.
    fn fetch_waiting(
        &self,
        request: WaitingRequest<'_>,
    ) -> impl Future<Output = Result<Fetched, StoreError>> + Send;

    /// Records verdicts in one transaction, for partitions still owned under the given epoch.
    /// Returns how many verdicts were accepted.
    ///
    /// A verdict changes nothing if the row is neither pending nor waiting, or has another message
    /// id. So settling may be repeated; only [`Verdict::Blocked`] counts a failure each time.
    /// Stores pass error texts through [`storable_error`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if the database rejects a verdict. The relay then isolates it with
    /// smaller batches.
    fn settle(
        &self,
        leases: &[Lease],
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Deletes messages both recorded and published longer ago than `request.older_than`, and
    /// deduplication keys recorded longer ago than `request.keys_older_than`. A store that drops
    /// whole days may keep messages a day longer. A key may outlive its message.
    fn purge(&self, request: PurgeRequest) -> impl Future<Output = Result<Purged, StoreError>> + Send;

    /// Lists all pauses, including ended but unfinished ones ([`Pause::stands`]): first the pause
    /// of all messages, then by aggregate type.
    fn pauses(&self) -> impl Future<Output = Result<Vec<Pause>, StoreError>> + Send;

    /// Makes the messages of ended pauses due (a message with its own time keeps it), then removes
    /// the pauses. May be called concurrently. One call releases a bounded number; returns whether
    /// more remain.
    fn finish_pauses(&self) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Counts waiting messages and dead letters.
    fn backlog(&self) -> impl Future<Output = Result<Backlog, StoreError>> + Send;
}

/// Longest lease and announcement. A later end means that the store's clock was set back.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(600);

/// Ownership of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The partition, in `0..PARTITIONS`.
    pub partition: u16,
    /// Fences off earlier owners.
    pub epoch: i64,
}

/// The arguments of [`OutboxStore::fetch`].
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// Of these partitions.
    pub leases: &'a [Lease],
    /// Maximum number of rows, including waiting ones.
    pub limit: NonZeroU32,
    /// The fetch stops after the row that exceeds these payload bytes, but returns at least one
    /// row.
    pub bytes: usize,
    /// Fetched and unsettled due rows, sorted; treated as returned before. Must not contain rows of
    /// [`Fetched::waits`]: their successors would look due.
    pub in_flight: &'a [RowKey],
}

/// The arguments of [`OutboxStore::fetch_waiting`].
#[derive(Debug, Clone, Copy)]
pub struct WaitingRequest<'a> {
    /// Of these partitions.
    pub leases: &'a [Lease],
    /// Maximum number of rows.
    pub limit: NonZeroU32,
    /// Maximum number of rows per aggregate.
    pub per_aggregate: NonZeroU32,
    /// As [`FetchRequest::bytes`].
    pub bytes: usize,
    /// As [`FetchRequest::in_flight`].
    pub in_flight: &'a [RowKey],
    /// Aggregates with enough messages in flight, to leave out.
    pub excluding: &'a [Aggregate],
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fetched {
    /// Publishable messages, in sequence order per aggregate.
    pub due: Vec<FetchedRow>,
    /// Delayed messages and messages of blocked aggregates, with [`Verdict::Waits`]. The relay
    /// settles them at once, so no fetch meets them before their time.
    pub waits: Vec<Settlement>,
    /// Whether a bound ended the fetch.
    pub more: bool,
}

/// A due message.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedRow {
    /// The row id.
    pub row_id: i64,
    /// The message id, readable even if the rest is not; `None` if damaged too.
    pub id: Option<MessageId>,
    /// The partition of the message.
    pub partition: u16,
    /// The aggregate, readable even if the rest is not.
    pub aggregate: Aggregate,
    /// Whether the message keeps the order of its aggregate.
    pub sequenced: bool,
    /// Failures caused by the message itself.
    pub attempts: u32,
    /// Failures of any kind, which increase the back-off.
    pub failures: u32,
    /// Whether the message was waiting rather than pending.
    pub waited: bool,
    /// Time since recording, by the store's clock.
    pub age: Duration,
    /// The message, or why it cannot be published.
    pub message: Result<Arc<Message>, RowFault>,
}

/// The outcome for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The broker confirmed the message.
    Published {
        /// Whether the store keeps the row as published until it is purged, or deletes it.
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
    /// until the message's time, or until now if not delayed.
    Waits,
    /// The message was not sent, because its aggregate type is paused. It waits, and its aggregate
    /// is blocked until the pause is finished ([`OutboxStore::finish_pauses`]). An unsequenced
    /// message waits alone. Counts no attempt or failure. A halted aggregate stays halted.
    ///
    /// The store checks the pause in the same transaction. Without one, the message waits for
    /// [`UNPAUSED_WAIT`].
    Paused,
    /// The message failed, or earlier messages must come first. It waits, and its aggregate is
    /// blocked for `delay`. An unsequenced message waits alone. A halted aggregate stays halted.
    Blocked {
        /// Length of the block; zero ends it at once.
        delay: Duration,
        /// The error text; counts a failure. `None` if nothing failed.
        error: Option<String>,
        /// Whether the message itself caused the failure, which counts an attempt.
        attempt: bool,
    },
    /// An attempt is used up and the message becomes a dead letter.
    Dead {
        /// The error text, for people.
        error: String,
        /// Whether the message halts its aggregate until it is retried or skipped. If another
        /// message already halts it, this message waits for its turn, and its attempt counts. No
        /// effect if unsequenced.
        halt: bool,
    },
}

/// The arguments of [`OutboxStore::purge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Minimum time since both recording and publishing; `None` deletes no messages.
    pub older_than: Option<Duration>,
    /// Minimum time since recording of deduplication keys.
    pub keys_older_than: Duration,
    /// Only larger ids: [`Purged::next`] of the previous call, or `None` to begin a round.
    pub after: Option<MessageId>,
    /// Maximum number of messages to read. A dropped day counts as one.
    pub limit: NonZeroU32,
}

/// The result of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    /// Number of messages deleted.
    pub deleted: u64,
    /// Where the next call continues, if not finished.
    pub next: Option<MessageId>,
}

/// Maximum length of stored error texts, in characters.
pub const ERROR_CHARS_MAX: usize = 1000;

/// Truncates an error text to [`ERROR_CHARS_MAX`] and removes NUL: every store accepts it.
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
    /// A problem for an operator, see [`SetupProblem::new`].
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
    /// had no effect and fails again until an operator acts. Not for temporary conditions, such as
    /// a lost connection, a deadlock, or a read-only server.
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
    /// An operator must act: a missing table, an old server, a rejected login, an untrusted
    /// certificate.
    #[error("{0}")]
    Setup(SetupProblem),
    /// Data that this library did not write.
    #[error("outbox is not as this version wrote it: {context}")]
    Corrupt {
        /// The finding and its place.
        context: String,
    },
}

/// Identifies a row, because a restore, logical replication, or a crash can reuse a row id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// The row id.
    pub row_id: i64,
    /// The message id; `None` if unreadable.
    pub id: Option<MessageId>,
}

/// A verdict on a fetched message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The row id.
    pub row_id: i64,
    /// The message id that the row must have; `None` compares the row id alone.
    pub id: Option<MessageId>,
    /// The partition of the message.
    pub partition: u16,
    /// As [`FetchedRow::waited`].
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
