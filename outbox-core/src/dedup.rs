//! Deduplication outside the service's database: the seam that consumers use for effects that live elsewhere.
//!
//! A handler that calls a payment provider, or writes to a search index, has no transaction that could hold a record of it. It claims
//! the event in a store, takes effect, and completes the claim. The promise is **weaker** than that of the inbox table, because effect
//! and record are two steps:
//!
//! | what happens | effect |
//! |---|---|
//! | copies of an event, one after the other or at once | once |
//! | the process dies before the effect | once, after the lease |
//! | the process dies **between effect and completion** | **again**, after the lease |
//! | the process stands still for longer than the lease (paused, swapped out) and goes on | **again**: somebody else has claimed meanwhile |
//! | a copy comes after the store has forgotten (`retention`, eviction, lost data) | **again** |
//!
//! So give the other side a stable key as well, where it takes one.
//!
//! Implementations: Redis (`outbox-inbox`, feature `redis`), NATS key-value buckets (`outbox-nats`), in memory (feature `testing`). Each runs
//! `testing::conformance::dedup_store`. Absent here: running handlers, and attempts.
//!
//! | store | choose it when | memory |
//! |---|---|---|
//! | Redis | there is one already; most calls per second | RAM; what it keeps after a crash or failover is a matter of its configuration |
//! | NATS bucket | NATS is there anyway, and no further server is wanted | on disk, replicated as the bucket is |
//! | none of these | the effect is in the service's database | strategy `message_id`, which has none of these gaps |

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::message::EventId;

/// What the methods of [`DedupStore`] return, so that it can be used as `dyn`.
pub type DedupFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DedupStoreError>> + Send + 'a>>;

/// Remembers which events a consumer has handled, outside the service's database.
///
/// Meant for `dyn`: an inbox holds one for all its handlers.
///
/// # Contract
///
/// * **Exclusive.** Of all claims of a key, in all processes, one at most is [`StoreClaim::Mine`] until it is released or its lease has
///   passed.
/// * **Leased.** A claim that is neither completed nor released is free again once its lease has passed, by the store's clock and not by
///   those of the processes: the next claim after that gets it.
/// * **Fenced.** Who lost a claim cannot complete or release it: the token tells.
/// * **Lasting.** A completed key stays done for at least `retention`. Nothing but time changes it.
/// * **Repeatable.** Completing or releasing again with the same token does what the first time did, so both may be repeated after an error.
/// * **Bounded.** Each future resolves within a time that the implementation documents, also while the store is out of reach.
/// * **Cancellation and `Err`.** The outcome is unknown: a claim may stand that nobody has the token of, until its lease has passed.
///
/// A lease is not extended. The caller claims for longer than its handler may run (its timeout and a margin for completing); then a claim
/// outlives every handler but one that stands still, and that one could not extend it either.
pub trait DedupStore: Send + Sync + 'static {
    /// Claims a key for a time, whole milliseconds, at least one.
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim>;

    /// Records that the effect of a claim has happened, and remembers it for at least `retention`, from now. Returns false, and changes nothing, if
    /// somebody else holds a claim of the key or has completed it; the effect may then happen twice. A claim whose lease has passed and that
    /// nobody holds is completed.
    fn complete<'a>(
        &'a self,
        key: &'a DedupKey,
        token: ClaimToken,
        retention: Duration,
    ) -> DedupFuture<'a, bool>;

    /// Gives a claim back whose effect did not happen, so that anybody may claim at once. Changes nothing if it is not held any more or
    /// completed.
    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()>;

    /// Checks what can be known to fail before the first message, and whether completed keys can be remembered for `retention`. Returns
    /// warnings, each with what to do.
    ///
    /// # Errors
    ///
    /// [`DedupStoreError::Configuration`] if it cannot work until somebody acts, [`DedupStoreError::Unavailable`] if it could not be found
    /// out now.
    fn preflight(&self, retention: Duration) -> DedupFuture<'_, Vec<String>>;
}

impl<S: DedupStore + ?Sized> DedupStore for Arc<S> {
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim> {
        (**self).claim(key, lease)
    }

    fn complete<'a>(
        &'a self,
        key: &'a DedupKey,
        token: ClaimToken,
        retention: Duration,
    ) -> DedupFuture<'a, bool> {
        (**self).complete(key, token, retention)
    }

    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()> {
        (**self).release(key, token)
    }

    fn preflight(&self, retention: Duration) -> DedupFuture<'_, Vec<String>> {
        (**self).preflight(retention)
    }
}

/// What is deduplicated: an event at a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupKey {
    /// Name of the consumer: 1 to 64 of the characters `A-Z a-z 0-9 _ -`. Upper and lower case differ.
    pub consumer: String,
    /// The event.
    pub event_id: EventId,
}

impl DedupKey {
    /// Names an event at a consumer.
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

/// Proof of a claim. Only the store that gave it knows what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimToken(u128);

impl ClaimToken {
    /// For stores: a token that no other claim of the key has had.
    #[must_use]
    pub const fn new(token: u128) -> Self {
        Self(token)
    }

    /// For stores: what was given to [`Self::new`].
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

/// Whose an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreClaim {
    /// Ours, for the time of the lease: take effect, then complete or release with this token.
    Mine(ClaimToken),
    /// Somebody else's, who has neither completed nor released it. Come again later.
    InProgress,
    /// It has taken effect.
    Done,
}

/// Why a store gave no answer. Nothing is known about the outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DedupStoreError {
    /// It cannot be reached, refuses everybody, or did not answer in time. Trying again may help; costs no attempt.
    #[error("deduplication store is not available: {context}")]
    Unavailable {
        /// What happened, in lower case.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// It is set up wrongly: nothing works until somebody acts.
    #[error("deduplication store: {context}")]
    Configuration {
        /// What is wrong and what to do, in lower case.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl DedupStoreError {
    /// The store gave no answer for now.
    pub fn unavailable(
        context: impl Into<String>,
        source: impl Into<Option<Box<dyn Error + Send + Sync>>>,
    ) -> Self {
        Self::Unavailable {
            context: context.into(),
            source: source.into(),
        }
    }

    /// The store cannot work as it is set up.
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
