//! Deduplication outside the service's database: the seam for handlers whose effects live elsewhere.
//!
//! A handler that calls a payment provider or writes to a search index has no transaction that could hold a record of
//! the effect. Instead, the consumer claims the event in a store, the handler takes effect, and the consumer completes
//! the claim. The promise is **weaker** than that of the inbox table, because effect and record are two steps:
//!
//! | situation | effect |
//! |---|---|
//! | copies of an event arrive, one after the other or at once | once |
//! | the process dies before the effect | once, after the lease |
//! | the process dies **between effect and completion** | **again**, after the lease |
//! | the process stands still for longer than the lease (paused, swapped out) and goes on | **again**: another process has claimed the event meanwhile |
//! | a copy arrives after the store has forgotten the event (`retention`, eviction, lost data) | **again** |
//!
//! So pass a stable key to the external service as well, if it accepts one.
//!
//! Implementations: Redis (`outbox-inbox`, feature `redis`), in memory (`outbox-testing`). Each runs `outbox_testing::conformance::dedup_store`. Not here: running handlers and counting attempts, see
//! `outbox-inbox`.
//!
//! | store | choose it when | durability |
//! |---|---|---|
//! | Redis | the service already has one, or the rate of calls is high | in RAM; Redis's configuration decides what survives a crash or a failover |
//! | none of these | the effect is in the service's database | strategy `message_id`, which has none of these gaps |

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::message::EventId;

/// Return type of the methods of [`DedupStore`], so that the trait works as `dyn`.
pub type DedupFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DedupStoreError>> + Send + 'a>>;

/// Remembers which events a consumer has handled, outside the service's database.
///
/// Meant for `dyn`: an inbox shares one store among all its handlers.
///
/// # Contract
///
/// * **Exclusive.** Of all claims of a key, in all processes, at most one is [`StoreClaim::Mine`] until it is released
///   or its lease has passed.
/// * **Leased.** A claim that is neither completed nor released ends with its lease, by the store's clock, not by the
///   processes' clocks. The next claim after that succeeds.
/// * **Fenced.** A process that has lost its claim cannot complete or release it: its token no longer matches.
/// * **Lasting.** A completed key stays done for at least `retention`. Only time changes it.
/// * **Repeatable.** Completing or releasing again with the same token does what the first call did, so both may be
///   repeated after an error.
/// * **Bounded.** Each future resolves within a time that the implementation documents, even while the store is out of
///   reach.
/// * **Cancellation and `Err`.** The outcome is unknown. A claim may exist whose token nobody has; it ends with its
///   lease.
///
/// A lease is not extended. The caller claims for longer than its handler may run: the handler's timeout plus a margin
/// for completing. Such a claim outlives every handler except one in a process that stands still, and that process
/// could not extend its lease either.
pub trait DedupStore: Send + Sync + 'static {
    /// Claims a key for `lease`, which must be whole milliseconds, at least one.
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim>;

    /// Records that the effect of a claim has happened, and remembers it for at least `retention`, counted from now.
    ///
    /// Returns false and changes nothing if another process holds a claim of the key or has completed the key. The
    /// effect may then happen twice. A claim whose lease has passed can still be completed as long as no other claim
    /// holds the key.
    fn complete<'a>(
        &'a self,
        key: &'a DedupKey,
        token: ClaimToken,
        retention: Duration,
    ) -> DedupFuture<'a, bool>;

    /// Releases a claim whose effect did not happen, so that any process may claim the key at once. Changes nothing if
    /// this token no longer holds the key, or if the key is completed.
    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()>;

    /// Looks for failures that are foreseeable before the first message, and checks that completed keys can be
    /// remembered for `retention`. Returns warnings, each with the action to take.
    ///
    /// # Errors
    ///
    /// [`DedupStoreError::Configuration`] if the store cannot work until somebody acts,
    /// [`DedupStoreError::Unavailable`] if the check itself could not be made now.
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

/// The unit of deduplication: an event at a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupKey {
    /// Name of the consumer: 1 to 64 of the characters `A-Z a-z 0-9 _ -`. Upper and lower case differ.
    pub consumer: String,
    /// The event's id.
    pub event_id: EventId,
}

impl DedupKey {
    /// The key of an event at a consumer.
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

/// Proof of a claim. Only the store that issued the token can interpret it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimToken(u128);

impl ClaimToken {
    /// For stores: a token that no other claim of the key has had.
    #[must_use]
    pub const fn new(token: u128) -> Self {
        Self(token)
    }

    /// For stores: the number that was passed to [`Self::new`].
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreClaim {
    /// The claim is the caller's until the lease passes: take effect, then complete or release with this token.
    Mine(ClaimToken),
    /// Another process has a claim that is neither completed nor released. Try again later.
    InProgress,
    /// The event has taken effect.
    Done,
}

/// Why a store gave no answer. Whether the call took effect is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DedupStoreError {
    /// The store cannot be reached, refuses every call, or did not answer in time. Trying again may help, and the
    /// failure counts no attempt.
    #[error("deduplication store is not available: {context}")]
    Unavailable {
        /// What happened, in lower case.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The store is set up wrongly: nothing works until somebody acts.
    #[error("deduplication store: {context}")]
    Configuration {
        /// What is wrong and how to repair it, in lower case.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl DedupStoreError {
    /// An [`Unavailable`](Self::Unavailable) error; `context` says in lower case what happened.
    pub fn unavailable(
        context: impl Into<String>,
        source: impl Into<Option<Box<dyn Error + Send + Sync>>>,
    ) -> Self {
        Self::Unavailable {
            context: context.into(),
            source: source.into(),
        }
    }

    /// A [`Configuration`](Self::Configuration) error; `context` says in lower case what is wrong and how to repair it.
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
