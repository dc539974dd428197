//! The outbox as the relay sees it: the seam to the database.
//!
//! Implementations: PostgreSQL, MySQL/MariaDB and SQLite (`outbox-sea-orm`), and memory (feature `testing`). Each runs
//! `testing::conformance::store`. Absent here: recording. Messages are written in the application's own transaction, which each
//! integration does in its own way.
//!
//! A message is *pending* until it is *published* or *parked*. A parked message is given up until somebody retries it; depending on
//! the policy it halts its aggregate (later messages wait) or not.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use uuid::Uuid;

use crate::message::{Aggregate, Message, MessageId};

/// Leases partitions, hands out due messages, and records what became of them.
///
/// The relay is generic over this trait; it is not meant for `dyn`.
///
/// # Contract
///
/// * **Exclusive.** Two live leases never cover the same partition. The store's clock decides what is live.
/// * **Fenced.** Each acquisition raises the partition's epoch, and [`settle`](Self::settle) accepts nothing under an older one, nor
///   under a lease that was released.
/// * **Ordered.** [`fetch`](Self::fetch) returns the messages of one aggregate in sequence, and never a message whose
///   predecessor is still pending and not returned before it.
/// * **Short.** No method leaves a transaction open after it returns.
/// * **Cancel-safe.** Dropping a future of this trait never leaves a transaction open or a write half-done; a lease acquired
///   unnoticed runs out on its own.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait OutboxStore: Send + Sync + 'static {
    /// Takes over up to `max` partitions that nobody holds, for `ttl`.
    fn acquire(
        &self,
        owner: OwnerId,
        ttl: Duration,
        max: u16,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Extends the given leases by `ttl` from now, and returns those that were still held. A lease that ran out is not revived.
    fn renew(
        &self,
        owner: OwnerId,
        leases: &[Lease],
        ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Gives the leases back at once, so that another relay need not wait for them to run out. Stale ones are ignored.
    fn release(
        &self,
        owner: OwnerId,
        leases: &[Lease],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns due messages of the leased partitions, oldest first.
    fn fetch(
        &self,
        request: FetchRequest<'_>,
    ) -> impl Future<Output = Result<Vec<FetchedRow>, StoreError>> + Send;

    /// Records verdicts in one transaction, those whose partition is still held under the given epoch; returns how many that were.
    ///
    /// A verdict on a row that is no longer pending changes nothing, so it may be repeated; [`Verdict::Failed`] counts each time. Errors
    /// are stored through [`storable_error`].
    fn settle(
        &self,
        leases: &[Lease],
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Counts what waits and what was given up.
    fn backlog(&self) -> impl Future<Output = Result<Backlog, StoreError>> + Send;
}

/// What an operator can do with parked messages.
pub trait OutboxAdmin: OutboxStore {
    /// Lists parked messages, oldest first.
    fn parked(
        &self,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<ParkedMessage>, StoreError>> + Send;

    /// Makes a parked message pending again with no attempts used, and lets its aggregate go on. Returns false if no such message is
    /// parked. If later messages of the aggregate were published meanwhile (policy park-and-continue), it comes after them.
    fn retry(&self, id: MessageId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Gives a parked message up: it stays parked, but no longer halts its aggregate. It can still be retried. Returns false if no such
    /// message is parked.
    fn skip(&self, id: MessageId) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// A relay's identity: fresh for each start, so that a restarted process is never mistaken for its predecessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId(Uuid);

impl OwnerId {
    /// A fresh identity.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The identity as a UUID.
    #[must_use]
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Ownership of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The partition, in `0..PARTITIONS`.
    pub partition: u16,
    /// Raised by each acquisition; the fence against owners that were paused.
    pub epoch: i64,
}

/// What to fetch.
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// Only messages of these partitions.
    pub leases: &'a [Lease],
    /// At most this many.
    pub limit: NonZeroU32,
    /// Leave out messages of these aggregates: the relay waits before it tries them again.
    pub excluding: &'a [Aggregate],
}

/// A due message and what the relay must know to settle it.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedRow {
    /// The row's key.
    pub seq: i64,
    /// The partition it belongs to.
    pub partition: u16,
    /// The aggregate, readable even if the rest is not.
    pub aggregate: Aggregate,
    /// Attempts used so far.
    pub attempts: u32,
    /// The message, or why the row cannot be read.
    pub message: Result<Message, String>,
}

/// What became of a fetched message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The row's key.
    pub seq: i64,
    /// The partition it belongs to.
    pub partition: u16,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The broker confirmed it.
    Published,
    /// It failed and used up an attempt; it stays pending.
    Failed {
        /// The error, for people.
        error: String,
    },
    /// It used up an attempt and is given up, visibly.
    Parked {
        /// The error, for people.
        error: String,
        /// Later messages of its aggregate wait until it is retried or skipped.
        halt: bool,
    },
}

/// What waits in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Messages not yet published, delayed and halted ones included.
    pub pending: u64,
    /// Messages given up.
    pub parked: u64,
    /// Aggregates that wait behind a parked message.
    pub halted_aggregates: u64,
}

/// A message that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedMessage {
    /// The message's id.
    pub id: MessageId,
    /// Its aggregate.
    pub aggregate: Aggregate,
    /// Its number within the aggregate.
    pub sequence: Option<u64>,
    /// Its event type.
    pub event_type: String,
    /// Attempts used.
    pub attempts: u32,
    /// Why it was given up.
    pub error: String,
    /// Whether its aggregate waits behind it.
    pub halts: bool,
}

/// Longest error text that is stored, in characters.
pub const ERROR_CHARS_MAX: usize = 1000;

/// Makes an error text storable everywhere: bounded, and without NUL, which would fail the failure path itself.
#[must_use]
pub fn storable_error(error: &str) -> String {
    error
        .chars()
        .filter(|c| *c != '\0')
        .take(ERROR_CHARS_MAX)
        .collect()
}

/// Why the store did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database failed or could not be reached; try again later.
    #[error("{context}")]
    Database {
        /// What could not be done.
        context: &'static str,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The database holds something we did not write.
    #[error("outbox is not as this version wrote it: {context}")]
    Corrupt {
        /// What was found, and where.
        context: String,
    },
}
