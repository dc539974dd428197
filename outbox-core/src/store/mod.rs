//! The outbox as the relay sees it: the seam to the database.
//!
//! Implementations: PostgreSQL, MySQL/MariaDB and SQLite (`outbox-sea-orm`), and memory (feature `testing`). Each runs
//! `testing::conformance::store`. Absent here: recording. Messages are written in the application's own transaction, which each
//! integration does in its own way.
//!
//! # What becomes of a message
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
//! *Pending* messages are found by scanning them in the order of their row ids. That scan must not meet the same row for ever only to
//! find that it may not be published yet, so what may not is set aside: a *block* on its aggregate says until when (a failure's back-off, a
//! delayed message, or a dead letter that halts it until an operator acts), and the aggregate's messages that the scan meets become *waiting*. When
//! the block *ends*, they are fetched by aggregate, in order; when none waits any more, the block is removed and the scan finds the aggregate's messages
//! again. So each row is met a bounded number of times, however much stands still.
//!
//! An unsequenced message asked for no order: it neither blocks its aggregate nor is blocked with it, and waits by itself.

mod admin;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use uuid::Uuid;

use crate::message::{Aggregate, Message, MessageId};

pub use admin::{BlockedAggregate, MessageStatus, OutboxAdmin, Selection, StoredMessage};

/// Leases partitions, hands out due messages, and records what became of them.
///
/// The relay is generic over this trait; it is not meant for `dyn`.
///
/// # Contract
///
/// * **Exclusive.** Two live leases never cover the same partition. The store's clock decides what is live.
/// * **Fenced.** Each acquisition raises the partition's epoch, and [`settle`](Self::settle) accepts nothing under an older one, nor
///   under a lease that was released. Nothing but `settle` and operators ([`OutboxAdmin`]) changes rows or blocks, and purging
///   deletes published rows.
/// * **Ordered.** [`fetch`](Self::fetch) and [`fetch_waiting`](Self::fetch_waiting) return the messages of one aggregate in the order of their row ids, and never
///   a message while an earlier one (by row id) is still pending or waiting and neither in flight nor returned before it.
/// * **Bounded.** One fetch looks at no more than `limit` pending rows beyond those in flight, or one of each leased partition if that is more,
///   however many wait, are delayed, or are of partitions that others have leased.
/// * **Short.** No method leaves a transaction open after it returns.
/// * **Given up.** A relay drops the future of a call that is not answered in time (`RelayConfig::store_timeout`). The store then closes what the call
///   waits on, a connection that fell silent above all: the next call must not meet it again.
/// * **Cancel-safe.** Dropping a future of this trait never leaves a transaction open or a write half-done; a lease acquired
///   unnoticed runs out on its own.
/// * **On `Err`.** The outcome is unknown. Every method may be called again.
pub trait OutboxStore: Send + Sync + 'static {
    /// Checks what can be known to fail before the first message: the server's version, the tables, settings that break a promise. Returns
    /// warnings, each with what to do.
    ///
    /// [`StoreError::Setup`] if it cannot work until somebody acts.
    fn preflight(&self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Says that this relay is alive for `ttl` from now, and how it is doing. Returns how many relays are alive, itself included, by what each said
    /// last; from that follows its share of the partitions.
    fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        fitness: Fitness,
    ) -> impl Future<Output = Result<Relays, StoreError>> + Send;

    /// Takes over up to `max` partitions that nobody owns, for `ttl`.
    fn acquire(
        &self,
        owner: OwnerId,
        ttl: Duration,
        max: u16,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Extends the given leases by `ttl` from now, and returns those that were still owned. A lease that ran out is not revived.
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

    /// Gives back everything that the owner owns and withdraws its announcement: it stops.
    fn leave(&self, owner: OwnerId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns pending messages of the leased partitions, in the order of their row ids: the first ones of each partition, but not necessarily of all together.
    fn fetch(&self, request: FetchRequest<'_>) -> impl Future<Output = Result<Fetched, StoreError>> + Send;

    /// Returns waiting messages whose block has ended, of each blocked aggregate the oldest, and unsequenced ones whose own time has come. Those that
    /// have been due for longest come first.
    fn fetch_waiting(
        &self,
        request: WaitingRequest<'_>,
    ) -> impl Future<Output = Result<Fetched, StoreError>> + Send;

    /// Records verdicts in one transaction, those whose partition is still owned under the given epoch; returns how many that were.
    ///
    /// A verdict on a row that is neither pending nor waiting changes nothing, so it may be repeated; [`Verdict::Blocked`] counts each time. The block of
    /// an aggregate ends with its last waiting message, unless it is halted. Errors are stored through [`storable_error`].
    fn settle(
        &self,
        leases: &[Lease],
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Deletes published messages that were recorded and published longer ago than `request.older_than`. Never anything else. A store that
    /// drops whole days may keep them up to a day longer.
    fn purge(&self, request: PurgeRequest) -> impl Future<Output = Result<Purged, StoreError>> + Send;

    /// Counts waiting messages and dead letters.
    fn backlog(&self) -> impl Future<Output = Result<Backlog, StoreError>> + Send;
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

/// What a relay says of itself, so that others can take over from one that cannot do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fitness {
    /// Its publisher has succeeded lately.
    Fit,
    /// Nothing failed, and nothing shows that it would succeed: it had nothing to publish.
    #[default]
    Unproven,
    /// It was ailing, and tries again.
    Trying,
    /// It does not reach the broker, or cannot fetch or settle, and has not for as long as a lease lasts.
    Ailing,
}

impl Fitness {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Fit, Self::Unproven, Self::Trying, Self::Ailing];

    /// Its number, as stores write it down.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// Relays that are alive, by what they said of themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relays {
    /// Said [`Fitness::Fit`].
    pub fit: u32,
    /// Said [`Fitness::Unproven`].
    pub unproven: u32,
    /// Said [`Fitness::Trying`].
    pub trying: u32,
    /// Said [`Fitness::Ailing`].
    pub ailing: u32,
}

impl Relays {
    /// Counts relays that said this.
    pub fn count(&mut self, fitness: Fitness, relays: u32) {
        let counted = match fitness {
            Fitness::Fit => &mut self.fit,
            Fitness::Unproven => &mut self.unproven,
            Fitness::Trying => &mut self.trying,
            Fitness::Ailing => &mut self.ailing,
        };
        *counted = counted.saturating_add(relays);
    }

    /// How many are alive, however they are.
    #[must_use]
    pub fn alive(&self) -> u32 {
        let all = [self.fit, self.unproven, self.trying, self.ailing];
        all.into_iter().fold(0, u32::saturating_add)
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
    /// At most this many rows, those that have to wait included.
    pub limit: NonZeroU32,
    /// Stop after the row with which the payloads exceed this many bytes; at least one row is returned.
    pub bytes: usize,
    /// Row ids of due rows that the relay has fetched and not settled yet: they are left out, and count as returned before. Not those of
    /// [`Fetched::waits`]: what comes behind them would look due.
    pub in_flight: &'a [i64],
}

/// What to fetch of blocked aggregates.
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
    pub in_flight: &'a [i64],
    /// Leave these aggregates out: the relay has enough of them in flight.
    pub excluding: &'a [Aggregate],
}

/// What a fetch found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fetched {
    /// Messages that may be published, those of one aggregate in sequence.
    pub due: Vec<FetchedRow>,
    /// Messages that may not be published yet, because they are delayed or their aggregate is blocked, as settlements of
    /// [`Verdict::Waits`]: to be settled at once, so that no fetch meets them again before their time.
    pub waits: Vec<Settlement>,
    /// A bound ended the fetch: there may be more.
    pub more: bool,
}

/// A due message and what the relay must know to settle it.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedRow {
    /// The row id.
    pub row_id: i64,
    /// The partition it belongs to.
    pub partition: u16,
    /// The aggregate, readable even if the rest is not.
    pub aggregate: Aggregate,
    /// Whether it keeps the order of its aggregate.
    pub sequenced: bool,
    /// Attempts used so far: refusals that were its own fault.
    pub attempts: u32,
    /// Failures so far, of any kind; back-off grows with them.
    pub failures: u32,
    /// It was waiting, not pending.
    pub waited: bool,
    /// How long ago it was recorded, by the store's clock; never negative.
    pub age: Duration,
    /// The message, or why the row cannot be read.
    pub message: Result<Message, String>,
}

/// What became of a fetched message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The row id.
    pub row_id: i64,
    /// The partition it belongs to.
    pub partition: u16,
    /// It was waiting, not pending; see [`FetchedRow::waited`].
    pub waited: bool,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The broker confirmed it.
    Published {
        /// Keep the row, marked as published, until it is purged; else delete it.
        keep: bool,
    },
    /// Nothing was tried, because it may not be published yet. If it is sequenced and delayed, its aggregate is blocked. It becomes waiting if its
    /// aggregate is blocked, or if it is unsequenced and delayed; else it stays as it is. If it is then the oldest waiting message of
    /// an aggregate that is not halted, the block lasts until its time: now, if it is not delayed.
    Waits,
    /// It failed, or others must come first: its aggregate is blocked for `delay` (an unsequenced message by itself), and it waits. A halted aggregate
    /// stays halted.
    Blocked {
        /// For how long; zero ends the block at once.
        delay: Duration,
        /// The error, for people; counts a failure. `None` if nothing failed.
        error: Option<String>,
        /// It was the message's own fault: counts an attempt as well.
        attempt: bool,
    },
    /// It used up an attempt and is dead-lettered, visibly.
    Dead {
        /// The error, for people.
        error: String,
        /// Its aggregate is blocked until the message is retried or skipped. If another message halts it already, this one is not dead-lettered yet: its
        /// attempt counts, and it waits for its turn. Without effect on an unsequenced message.
        halt: bool,
    },
}

/// What to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Only messages that were recorded and published longer ago.
    pub older_than: Duration,
    /// Look only at messages with a larger id; where the last purge of this round ended.
    pub after: Option<MessageId>,
    /// Look at no more messages than this; a day that is dropped as a whole counts as one.
    pub limit: NonZeroU32,
}

/// What was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purged {
    /// Messages deleted.
    pub deleted: u64,
    /// Where to go on; `None` at the end of what is old enough.
    pub next: Option<MessageId>,
}

/// What waits in the outbox. Counts end at [`BACKLOG_COUNT_MAX`], so that counting stays cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Messages not yet published, waiting ones included.
    pub pending: u64,
    /// Of those, messages that wait for their aggregate or their time.
    pub waiting: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Aggregates that wait until an operator acts.
    pub halted_aggregates: u64,
    /// Aggregates whose block has not ended, halted ones included.
    pub blocked_aggregates: u64,
    /// How long ago the oldest message was recorded that is pending and not waiting.
    pub oldest_pending: Option<Duration>,
}

/// How far a backlog is counted.
pub const BACKLOG_COUNT_MAX: u64 = 1_000_000;

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

/// Waits for a call for so long and no longer: what has become of it is unknown then, as after any other error. A connection that falls silent answers
/// neither yes nor no.
pub(crate) async fn within<T>(
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
    /// No answer came in time; whether something was done is unknown.
    #[error("{context}: no answer within {waited:?}")]
    Silent {
        /// What could not be done.
        context: &'static str,
        /// For how long it was waited.
        waited: Duration,
    },
    /// It cannot work until somebody acts: a table is missing, the server is too old.
    #[error("{context}")]
    Setup {
        /// What is wrong, and what to do.
        context: String,
    },
    /// The database holds something we did not write.
    #[error("outbox is not as this version wrote it: {context}")]
    Corrupt {
        /// What was found, and where.
        context: String,
    },
}
