//! Deduplication for effects outside the database.
//!
//! The consumer claims the event in a store, runs the handler, then completes the claim. Effect and
//! record are two steps, so the guarantee is **weaker** than with the inbox table:
//!
//! | situation | effect |
//! |---|---|
//! | duplicates arrive | once |
//! | the process crashes before the effect | once, after the lease |
//! | the process crashes **between effect and completion** | **again**, after the lease |
//! | the process is suspended for longer than the lease | **again**, by another process |
//! | the store has dropped the event (`retention`, eviction, data loss) | **again** |
//!
//! Also pass an idempotency key to the external service. With Redis, the configuration of Redis
//! decides what survives a crash or failover.
//!
//! Implementations: Redis (`outbox-inbox`, feature `redis`) and memory (`outbox-testing`), checked
//! by `outbox_testing::conformance::dedup_store`.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use crate::message::EventId;

/// A [`DedupStore`] future.
pub type DedupFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DedupStoreError>> + Send + 'a>>;

/// Stores which events a consumer has handled. Meant for `dyn`.
///
/// # Contract
///
/// * **Exclusive.** At most one claim of a key is [`StoreClaim::Mine`], until the claim is released
///   or expires.
/// * **Leased.** A claim expires with its lease, by the store's clock. A lease cannot be extended:
///   claim for the handler's timeout plus a margin.
/// * **Fenced.** A process that has lost its claim cannot complete or release it.
/// * **Lasting.** A completed key stays completed for at least `retention`.
/// * **Repeatable.** Completing or releasing again with the same token changes nothing.
/// * **Bounded.** Each future resolves within a documented time, even if the store is unreachable.
/// * **Cancellation and `Err`.** The outcome is unknown. A claim whose token is lost expires.
pub trait DedupStore: Send + Sync + 'static {
    /// Claims a key for `lease`: whole milliseconds, at least one.
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim>;

    /// Records the effect for at least `retention` from now. Also possible after the lease, if no
    /// other claim holds the key.
    ///
    /// Returns false and changes nothing if another process has claimed or completed the key: the
    /// effect may happen twice.
    fn complete<'a>(
        &'a self,
        key: &'a DedupKey,
        token: ClaimToken,
        retention: Duration,
    ) -> DedupFuture<'a, bool>;

    /// Releases a claim without an effect. Changes nothing if the token no longer holds the key, or
    /// the key is completed.
    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()>;

    /// Checks for foreseeable failures, and whether the store can keep keys for `retention`.
    /// Returns warnings with actions.
    ///
    /// # Errors
    ///
    /// [`DedupStoreError::Configuration`] if an operator must act. [`DedupStoreError::Unavailable`]
    /// if the check could not run.
    fn preflight(&self, retention: Duration) -> DedupFuture<'_, Vec<String>>;
}

/// Key of a deduplication row: an event and the consumer that handles it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupKey {
    /// The consumer's name: 1 to 64 of `A-Z a-z 0-9 _ -`, case-sensitive.
    pub consumer: String,
    /// The event's id.
    pub event_id: EventId,
}

impl DedupKey {
    /// A new key.
    pub fn new(consumer: impl Into<String>, event_id: EventId) -> Self {
        Self {
            consumer: consumer.into(),
            event_id,
        }
    }
}

impl fmt::Display for DedupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.consumer, self.event_id)
    }
}

/// A claim's proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimToken(u128);

impl ClaimToken {
    /// For stores: a token unique to this claim.
    #[must_use]
    pub const fn new(token: u128) -> Self {
        Self(token)
    }

    /// The stored number.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

/// Result of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreClaim {
    /// The claim is held until the lease expires: run the handler, then complete or release.
    Mine(ClaimToken),
    /// Another process holds the claim. Retry later.
    InProgress,
    /// Already handled.
    Done,
}

/// A failed store call. The outcome is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DedupStoreError {
    /// The store is unreachable, overloaded or timed out. Retry; counts no attempt.
    #[error("deduplication store is not available: {context}")]
    Unavailable {
        /// What happened, in lower case.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The store is misconfigured; an operator must act.
    #[error("deduplication store: {context}")]
    Configuration {
        /// Problem and repair, in lower case.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl DedupStoreError {
    /// An [`Unavailable`](Self::Unavailable) error; `context` in lower case.
    pub fn unavailable(
        context: impl Into<String>,
        source: impl Into<Option<Box<dyn Error + Send + Sync>>>,
    ) -> Self {
        Self::Unavailable {
            context: context.into(),
            source: source.into(),
        }
    }

    /// A [`Configuration`](Self::Configuration) error; `context` in lower case, with the repair.
    pub fn configuration(
        context: impl Into<String>,
        source: impl Into<Option<Box<dyn Error + Send + Sync>>>,
    ) -> Self {
        Self::Configuration {
            context: context.into(),
            source: source.into(),
        }
    }
}
