//! Settings of a relay.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use super::RelayError;
use crate::retry::Backoff;
use crate::store::LEASE_TTL_MAX;

/// What a dead letter does to its aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoisonPolicy {
    /// Later messages wait until an operator retries or skips the dead letter.
    #[default]
    HaltAggregate,
    /// Later messages are published: consumers see a gap in the sequence.
    Continue,
}

/// Failure handling of an event type.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventPolicy {
    /// Rejections until a message is a dead letter. Outages do not count. At least 1, default 20.
    pub attempts_max: u32,
    /// How long the aggregate waits after a failure. 0 < min ≤ max, default 100 ms to 30 s.
    pub backoff: Backoff,
    /// What a dead letter does to its aggregate. Default: halt.
    pub on_poison: PoisonPolicy,
}

impl Default for EventPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 20,
            backoff: BACKOFF,
            on_poison: PoisonPolicy::HaltAggregate,
        }
    }
}

/// Retention of published messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Keeps messages this long, at least an hour, for audits, replays and reconciling.
    KeepFor(Duration),
    /// Keeps messages until an operator deletes them.
    Keep,
    /// Deletes messages at once: fastest, but no audits, replays or reconciling.
    Delete,
}

impl Retention {
    pub(super) fn deletes(self) -> bool {
        match self {
            Self::KeepFor(_) | Self::Delete => true,
            Self::Keep => false,
        }
    }
}

/// Settings of a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayConfig {
    /// Lifetime of an unrenewed lease, and takeover delay after a crash. A database outage longer
    /// than a sixth of the lifetime interrupts publishing. 300 ms to 10 min, default 15 s.
    pub lease_ttl: Duration,
    /// Payload bytes that end one fetch. The relay fetches while less than half as many bytes are
    /// in memory. More than 0, default 32 MiB.
    pub buffer_bytes: usize,
    /// Maximum interval between idle polls: the publish latency of commits in other processes.
    /// Delayed messages and back-offs are polled at least once per 5 × `poll_max`. More than 0,
    /// default 1 s.
    pub poll_max: Duration,
    /// Policy of event types without entry in `policies`.
    pub policy: EventPolicy,
    /// Failure policies by event type (`order.placed`). Default: none.
    pub policies: BTreeMap<String, EventPolicy>,
    /// Retention; default 7 days.
    pub retention: Retention,
    /// Retention of deduplication keys, from recording. Must exceed the time in which a service may
    /// repeat a save. At least an hour, default 7 days.
    pub dedup_key_retention: Duration,
    /// Health is [`Stuck`](crate::Health::Stuck) after due messages stay unconfirmed, or the
    /// database fails, for this long. Default 5 min.
    pub stuck_after: Duration,
    /// Whether the relay starts although a live relay of the outbox has another destination or
    /// source. Each message then goes to the destination of the relay that owns its partition. Set
    /// it only to move without a pause: start new relays with this setting, then stop old relays.
    /// Default false.
    pub allow_other_destination: bool,
    /// Messages per fetch.
    #[doc(hidden)]
    pub batch: NonZeroU32,
    /// Maximum unconfirmed messages.
    #[doc(hidden)]
    pub window: usize,
    /// Minimum interval between idle polls, at most `poll_max`.
    #[doc(hidden)]
    pub poll_min: Duration,
    /// Timeout of database calls; a timeout closes the connection. Lease renewals: at most a third
    /// of `lease_ttl`; purging and counting: six times this.
    #[doc(hidden)]
    pub store_timeout: Duration,
    /// Back-off while broker or database is down.
    #[doc(hidden)]
    pub backoff: Backoff,
    /// How long a shutdown waits for confirmations, at most until the leases expire.
    #[doc(hidden)]
    pub shutdown_timeout: Duration,
    /// Jitter seed; default random.
    #[doc(hidden)]
    pub seed: Option<u64>,
}

const LEASE_TTL_MIN: Duration = Duration::from_millis(300);

const BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(30),
};

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            lease_ttl: Duration::from_secs(15),
            buffer_bytes: 32 << 20,
            poll_max: Duration::from_secs(1),
            policy: EventPolicy::default(),
            policies: BTreeMap::new(),
            retention: Retention::KeepFor(Duration::from_secs(7 * 24 * 3600)),
            dedup_key_retention: Duration::from_secs(7 * 24 * 3600),
            stuck_after: Duration::from_secs(300),
            allow_other_destination: false,
            batch: const { NonZeroU32::new(4000).unwrap() },
            window: 1024,
            poll_min: Duration::from_millis(50),
            store_timeout: Duration::from_secs(10),
            backoff: BACKOFF,
            shutdown_timeout: Duration::from_secs(10),
            seed: None,
        }
    }
}

impl EventPolicy {
    crate::__setters! {
        attempts_max: u32,
        backoff: Backoff,
        on_poison: PoisonPolicy,
    }

    fn check(&self, of: &str) -> Result<(), RelayError> {
        if self.backoff.min.is_zero() || self.backoff.min > self.backoff.max {
            return Err(RelayError::Config(format!(
                "backoff of {of} is {:?}; use 0 < min <= max",
                self.backoff
            )));
        }
        if self.attempts_max == 0 {
            return Err(RelayError::Config(format!(
                "attempts_max of {of} is 0; use at least 1"
            )));
        }
        Ok(())
    }
}

impl RelayConfig {
    crate::__setters! {
        lease_ttl: Duration,
        buffer_bytes: usize,
        poll_max: Duration,
        policy: EventPolicy,
        retention: Retention,
        dedup_key_retention: Duration,
        stuck_after: Duration,
        allow_other_destination: bool,
        #[doc(hidden)]
        batch: NonZeroU32,
        #[doc(hidden)]
        window: usize,
        #[doc(hidden)]
        poll_min: Duration,
        #[doc(hidden)]
        store_timeout: Duration,
        #[doc(hidden)]
        backoff: Backoff,
        #[doc(hidden)]
        shutdown_timeout: Duration,
        #[doc(hidden)]
        seed: Option<u64>,
    }

    /// Sets the policy of one event type (`order.placed`).
    #[must_use]
    pub fn event_policy(mut self, event_type: impl Into<String>, policy: EventPolicy) -> Self {
        self.policies.insert(event_type.into(), policy);
        self
    }

    pub(super) fn policy_of(&self, event_type: &str) -> &EventPolicy {
        self.policies.get(event_type).unwrap_or(&self.policy)
    }

    pub(super) fn check(&self) -> Result<(), RelayError> {
        let fail = |text: String| Err(RelayError::Config(text));
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&self.lease_ttl) {
            return fail(format!(
                "lease_ttl is {:?}; use {LEASE_TTL_MIN:?} to {LEASE_TTL_MAX:?}",
                self.lease_ttl
            ));
        }
        if self.buffer_bytes == 0 {
            return fail("buffer_bytes is 0; use at least the size of a large payload".to_owned());
        }
        if self.poll_max.is_zero() {
            return fail("poll_max is 0; use a longer time".to_owned());
        }
        if let Retention::KeepFor(time) = self.retention
            && time < Duration::from_secs(3600)
        {
            return fail(format!(
                "retention keeps messages for {time:?}; use at least an hour, or Retention::Delete"
            ));
        }
        if self.dedup_key_retention < Duration::from_secs(3600) {
            return fail(format!(
                "dedup_key_retention is {:?}; use at least an hour",
                self.dedup_key_retention
            ));
        }
        self.policy.check("the default policy")?;
        self.policies
            .iter()
            .try_for_each(|(event_type, policy)| policy.check(&format!("the policy of {event_type}")))
    }
}
