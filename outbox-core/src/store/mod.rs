//! The database trait: the outbox as the relay uses it.
//!
//! Implementations: PostgreSQL, MySQL/MariaDB, SQLite (`outbox-sea-orm`) and memory
//! (`outbox-testing`), checked by `outbox_testing::conformance::store`.
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
//! A relay scans *pending* messages, mostly in row id order. To keep scans short, messages are set
//! aside:
//!
//! * A *block* states until when messages of an aggregate may not be published: a back-off, a
//!   delayed message, a pause, or a dead letter that halts the aggregate.
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
    Announcement, ExpiredRelay, LiveRelay, OwnerId, Registration, RelayHealth, RelayMode, RelayTrouble,
    Relays, TroubleClass,
};
pub use setup::{SetupKind, SetupProblem};

/// Leases partitions, returns due messages, stores the results of publishes (verdicts). Not meant
/// for `dyn`.
///
/// # Contract
///
/// * **Exclusive.** Two live leases never cover the same partition, by the store's clock.
/// * **Fenced.** Each acquisition raises the epoch of the partition. [`settle`](Self::settle)
///   rejects older epochs and released leases. Only `settle` and operators ([`OutboxAudit`]) change
///   unpublished rows and blocks. Purging deletes only published rows.
/// * **Ordered.** Fetches return the messages of one aggregate in sequence order. While an earlier
///   message is pending or waiting, no later message is returned, unless the earlier message is in
///   flight or was returned before.
/// * **Durable.** A returned message survives a crash of the database, even if the database shows
///   commits that are not durable.
/// * **Bounded.** One fetch reads at most `limit` pending rows beyond the rows in flight, or one
///   row per leased partition if more than `limit` partitions are leased. Waiting or delayed
///   messages and foreign partitions do not count.
/// * **Short.** No method leaves a transaction open.
/// * **Abandoned calls.** A relay drops a call after `RelayConfig::store_timeout`. The store then
///   closes the unanswered connection.
/// * **Cancel-safe.** A dropped future leaves no open transaction and no half write. A lease
///   acquired by a dropped call expires.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait OutboxStore: Send + Sync + 'static {
    /// Checks server version, tables, and settings that break a guarantee. Returns warnings.
    ///
    /// `deletes`: whether the relay will delete published messages, which needs a privilege.
    ///
    /// # Errors
    ///
    /// [`StoreError::Setup`] if an operator must act. [`StoreError::Database`] if the database is
    /// unreachable, or temporarily read-only as during a failover.
    fn preflight(&self, deletes: bool) -> impl Future<Output = Result<Vec<SetupProblem>, StoreError>> + Send;

    /// Announces this relay for `ttl`. Counts live relays by fitness, including this relay, and
    /// relays with another destination. A registration without a destination agrees with every
    /// destination. An announcement that ends more than [`LEASE_TTL_MAX`] from now counts as
    /// expired.
    fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> impl Future<Output = Result<Relays, StoreError>> + Send;

    /// Lists live relays by id (start order).
    fn relays(&self) -> impl Future<Output = Result<Vec<LiveRelay>, StoreError>> + Send;

    /// Acquires leases of up to `max` free partitions for `ttl`. Leases that end more than
    /// [`LEASE_TTL_MAX`] from now are shortened, because the store's clock was set back; their
    /// owner may renew them.
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

    /// Releases leases. Ignores stale leases.
    fn release(
        &self,
        owner: OwnerId,
        leases: &[Lease],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Releases all leases of the owner and its announcement.
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
    /// Returns the number of accepted verdicts.
    /// A verdict changes nothing if the row is neither pending nor waiting, or has another message
    /// id. So a settlement may be repeated; only [`Verdict::Blocked`] counts a failure each time.
    /// Stores pass error texts through [`storable_error`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if the database rejects a verdict. The relay then isolates the
    /// verdict with smaller batches.
    fn settle(
        &self,
        leases: &[Lease],
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Deletes messages both recorded and published longer ago than `request.older_than`, and
    /// deduplication keys recorded longer ago than `request.keys_older_than`. A store that drops
    /// whole days may keep messages a day longer. Keys may outlive their messages.
    fn purge(&self, request: PurgeRequest) -> impl Future<Output = Result<Purged, StoreError>> + Send;

    /// Lists all pauses, including ended pauses that still hold messages ([`Pause::stands`]). The
    /// pause of all messages is first, then pauses by aggregate type.
    fn pauses(&self) -> impl Future<Output = Result<Vec<Pause>, StoreError>> + Send;

    /// Makes the messages of ended pauses due, unless the messages are delayed, then removes the
    /// pauses. May run concurrently. One call releases a bounded number of messages; returns
    /// whether more remain.
    fn finish_pauses(&self) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Counts the backlog.
    fn backlog(&self) -> impl Future<Output = Result<Backlog, StoreError>> + Send;
}

/// Longest lease and announcement. If one ends later, the store's clock was set back.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(600);

/// Ownership of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Partition in `0..PARTITIONS`.
    pub partition: u16,
    /// Acquisition number; older epochs are rejected.
    pub epoch: i64,
}

/// Arguments of [`OutboxStore::fetch`].
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// Partitions to read.
    pub leases: &'a [Lease],
    /// Maximum rows, including waiting rows.
    pub limit: NonZeroU32,
    /// The fetch stops after the row that exceeds these payload bytes, but returns at least one
    /// row.
    pub bytes: usize,
    /// Due rows that an earlier fetch has returned and that are not settled, sorted. The fetch
    /// skips them and may return later messages of their aggregates. Must not contain rows of
    /// [`Fetched::waits`]: messages behind such rows would look due.
    pub in_flight: &'a [RowKey],
}

/// Arguments of [`OutboxStore::fetch_waiting`].
#[derive(Debug, Clone, Copy)]
pub struct WaitingRequest<'a> {
    /// Partitions to read.
    pub leases: &'a [Lease],
    /// Maximum rows.
    pub limit: NonZeroU32,
    /// Maximum rows per aggregate.
    pub per_aggregate: NonZeroU32,
    /// As [`FetchRequest::bytes`].
    pub bytes: usize,
    /// As [`FetchRequest::in_flight`].
    pub in_flight: &'a [RowKey],
    /// Aggregates to leave out, because enough of their messages are in flight.
    pub excluding: &'a [Aggregate],
}

/// Result of a fetch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fetched {
    /// Publishable messages, in sequence order per aggregate.
    pub due: Vec<FetchedRow>,
    /// Delayed messages and messages of blocked aggregates, with [`Verdict::Waits`]. The relay
    /// settles these verdicts at once, so that no later fetch reads the messages before they are
    /// due.
    pub waits: Vec<Settlement>,
    /// Whether a bound ended the fetch.
    pub more: bool,
}

/// A due message.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedRow {
    /// The row id.
    pub row_id: i64,
    /// The message id, even of an unreadable row; `None` if the id is damaged.
    pub id: Option<MessageId>,
    /// The message's partition.
    pub partition: u16,
    /// The aggregate, even of an unreadable row.
    pub aggregate: Aggregate,
    /// Whether the message is ordered within its aggregate.
    pub sequenced: bool,
    /// Failures caused by the message.
    pub attempts: u32,
    /// Failures of any kind, which increase the back-off.
    pub failures: u32,
    /// Whether the message was waiting.
    pub waited: bool,
    /// Time since recording, by the store's clock.
    pub age: Duration,
    /// The message, or its fault.
    pub message: Result<Arc<Message>, RowFault>,
}

/// Outcome for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Confirmed by the broker.
    Published {
        /// Whether the row is kept until purged, or deleted.
        keep: bool,
    },
    /// The message was not sent, because it is not due.
    ///
    /// | message | effect |
    /// |---|---|
    /// | sequenced and delayed | blocks its aggregate and waits |
    /// | sequenced, in a blocked aggregate | waits |
    /// | unsequenced and delayed | waits alone |
    /// | any other | none |
    ///
    /// If the message becomes the oldest waiting message of an aggregate that is not halted, the
    /// block lasts until the message's time. If the message is not delayed, the block ends now.
    Waits,
    /// The message was not sent, because its aggregate type is paused. It waits, and its aggregate
    /// is blocked until the pause is finished ([`OutboxStore::finish_pauses`]). An unsequenced
    /// message waits alone. Counts no attempt or failure. A halted aggregate stays halted.
    ///
    /// The store checks the pause in the same transaction. If the pause has ended, the message
    /// waits for [`UNPAUSED_WAIT`].
    Paused,
    /// The message failed, or must follow earlier messages. It waits, and its aggregate is blocked
    /// for `delay`. An unsequenced message waits alone. A halted aggregate stays halted.
    Blocked {
        /// Duration of the block; zero ends the block.
        delay: Duration,
        /// Error text, which counts a failure. `None`: nothing failed.
        error: Option<String>,
        /// Whether the message itself failed, which counts an attempt.
        attempt: bool,
    },
    /// The message becomes a dead letter. Counts an attempt.
    Dead {
        /// The error text.
        error: String,
        /// Whether the message halts its aggregate until retried or skipped. If another message
        /// already halts the aggregate, this message waits its turn, and its attempt counts. No
        /// effect if unsequenced.
        halt: bool,
    },
}

/// Arguments of [`OutboxStore::purge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Minimum time since recording and publishing; `None` deletes no messages.
    pub older_than: Option<Duration>,
    /// Minimum age of deduplication keys.
    pub keys_older_than: Duration,
    /// [`Purged::next`] of the previous call; `None` starts a new pass over the table.
    pub after: Option<MessageId>,
    /// Maximum messages to read. A dropped day counts as one.
    pub limit: NonZeroU32,
}

/// Result of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    /// Deleted message count.
    pub deleted: u64,
    /// Next [`PurgeRequest::after`]; `None` after the last call of a round.
    pub next: Option<MessageId>,
}

/// Maximum characters of stored errors.
pub const ERROR_CHARS_MAX: usize = 1000;

/// Truncates an error to [`ERROR_CHARS_MAX`] and removes NUL, so that every store accepts the text.
#[must_use]
pub fn storable_error(error: &str) -> String {
    error
        .chars()
        .filter(|c| *c != '\0')
        .take(ERROR_CHARS_MAX)
        .collect()
}

/// Awaits a call for at most `bound`. After a timeout the outcome is unknown.
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
    /// A [`SetupProblem`] for an operator.
    pub fn setup(kind: SetupKind, seen: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::Setup(SetupProblem::new(kind, seen, repair))
    }
}

/// Why a store call failed.
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
    /// The database rejected the statement: a missing privilege, a constraint, a value. The
    /// statement had no effect, and fails again until an operator acts. Not for temporary
    /// conditions, such as a lost connection, a deadlock, or a read-only server.
    #[error("{context}")]
    Refused {
        /// The failed action.
        context: &'static str,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Timed out. The outcome is unknown.
    #[error("{context}: no answer within {waited:?}")]
    Silent {
        /// The failed action.
        context: &'static str,
        /// Call duration.
        waited: Duration,
    },
    /// An operator must act: a missing table, an old server, a rejected login, an untrusted
    /// certificate.
    #[error("{0}")]
    Setup(SetupProblem),
    /// Unreadable data of another program.
    #[error("unexpected data in the outbox: {context}")]
    Corrupt {
        /// What is unexpected, and in which row or column.
        context: String,
    },
}

/// Identifies a row. A restore, logical replication, or a crash can reuse a row id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// The row id.
    pub row_id: i64,
    /// The message id; `None` if unreadable.
    pub id: Option<MessageId>,
}

/// The result of a publish (verdict) for one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The row id.
    pub row_id: i64,
    /// Required message id; `None` compares the row id alone.
    pub id: Option<MessageId>,
    /// The message's partition.
    pub partition: u16,
    /// As [`FetchedRow::waited`].
    pub waited: bool,
    /// The verdict.
    pub verdict: Verdict,
}

impl Settlement {
    /// The row's key.
    #[must_use]
    pub fn key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: self.id,
        }
    }
}

impl FetchedRow {
    /// The row's key.
    #[must_use]
    pub fn key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: self.id,
        }
    }

    /// Settles this row.
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
