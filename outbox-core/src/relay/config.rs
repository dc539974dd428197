//! Settings of a relay, each with its bound, default and trade-off.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use super::RelayError;
use crate::retry::Backoff;
use crate::store::LEASE_TTL_MAX;

/// What happens to the aggregate of a message that is dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoisonPolicy {
    /// Later messages of the aggregate wait until the dead one is retried or skipped: order is kept.
    #[default]
    HaltAggregate,
    /// Later messages go on: consumers see a hole in the sequence.
    Continue,
}

/// What follows from the failures of one event type.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventPolicy {
    /// Refusals that are the message's own fault, as far as we know, after which it is a dead letter. Outages never count. Default 20.
    pub attempts_max: u32,
    /// How long the aggregate waits after a failure, more each time. Default 100 ms to 30 s.
    pub backoff: Backoff,
    /// What becomes of the aggregate of a dead letter. Default: halt.
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

/// What becomes of messages that are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// They are kept for this long, for audits, replays and reconciling with a stream that lost some. At least an hour.
    KeepFor(Duration),
    /// They are kept until somebody deletes them.
    Keep,
    /// They are deleted as soon as they are published: the fastest, and no way back.
    Delete,
}

impl Retention {
    /// Whether the relay ever deletes a message.
    pub(super) fn deletes(self) -> bool {
        match self {
            Self::KeepFor(_) | Self::Delete => true,
            Self::Keep => false,
        }
    }
}

/// Settings of a relay. `RelayConfig::default()` is right for most services.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayConfig {
    /// How long a partition is owned without renewal. A crashed relay's messages wait this long for another relay; a database
    /// hiccup of more than a sixth of it interrupts publishing. 300 ms to 10 min, default 15 s.
    pub lease_ttl: Duration,
    /// Messages per fetch. One and a half times as many wait in memory at most. 1 to 10,000, default 4,000.
    pub batch: NonZeroU32,
    /// Bytes of payload that wait in memory: nothing is fetched beyond half of it, and a fetch ends when it returned as much. Default 32 MiB.
    pub buffer_bytes: usize,
    /// Unconfirmed messages at a time. 1 to 1,024, default 1,024.
    pub window: usize,
    /// Shortest wait between polls while idle. Default 50 ms.
    pub poll_min: Duration,
    /// Longest wait between polls while idle, and so the latency of commits in other processes. Messages that wait for their time or for a
    /// back-off are looked for at least every five of these. Default 1 s.
    pub poll_max: Duration,
    /// How long the relay waits for an answer of the database; then the outcome is unknown, the connection is closed, and it tries again. What keeps the
    /// leases waits for a third of `lease_ttl` at most; purging and counting, which nothing waits for, six times as long. Raise it
    /// if fetches or settlements of a large `batch` take longer. 100 ms to 60 s, default 10 s.
    pub store_timeout: Duration,
    /// How long the relay pauses while broker or database are out of reach. Default 100 ms to 30 s.
    pub backoff: Backoff,
    /// What follows from the failures of event types that have no policy of their own.
    pub policy: EventPolicy,
    /// Policies by event type (`order.placed`).
    pub policies: BTreeMap<String, EventPolicy>,
    /// What becomes of published messages. Default: kept for 7 days.
    pub retention: Retention,
    /// How long deduplication keys are kept, counted from their recording, whatever becomes of their messages. Longer than anybody repeats a
    /// save. At least an hour. Default 7 days.
    pub dedup_key_retention: Duration,
    /// How long a shutdown waits for confirmations. Default 10 s, never longer than the leases last.
    pub shutdown_timeout: Duration,
    /// Without a confirmed message for this long, while some are due, or with a database that fails for this long, a relay is reported as stuck.
    /// Default 5 min.
    pub stuck_after: Duration,
    /// Whether the relay starts although a live relay of the same outbox publishes to another destination or under another source. Each message then goes to
    /// the destination of the relay that owns its partition. Only for a deliberate move without a pause: set it on the new relays, then stop the old ones.
    /// Default false.
    pub allow_other_destination: bool,
    /// Seed of the jitter; tests set it to repeat a run. Default: random.
    pub seed: Option<u64>,
}

const BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(30),
};

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            lease_ttl: Duration::from_secs(15),
            // Evaluated at compile time.
            batch: const { NonZeroU32::new(4000).unwrap() },
            buffer_bytes: 32 << 20,
            window: 1024,
            poll_min: Duration::from_millis(50),
            poll_max: Duration::from_secs(1),
            store_timeout: Duration::from_secs(10),
            backoff: BACKOFF,
            policy: EventPolicy::default(),
            policies: BTreeMap::new(),
            retention: Retention::KeepFor(Duration::from_secs(7 * 24 * 3600)),
            dedup_key_retention: Duration::from_secs(7 * 24 * 3600),
            shutdown_timeout: Duration::from_secs(10),
            stuck_after: Duration::from_secs(300),
            allow_other_destination: false,
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
        check_backoff(&format!("backoff of {of}"), &self.backoff)?;
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
        batch: NonZeroU32,
        buffer_bytes: usize,
        window: usize,
        poll_min: Duration,
        poll_max: Duration,
        store_timeout: Duration,
        backoff: Backoff,
        /// It holds for all event types without a policy of their own.
        policy: EventPolicy,
        retention: Retention,
        dedup_key_retention: Duration,
        shutdown_timeout: Duration,
        stuck_after: Duration,
        allow_other_destination: bool,
        seed: Option<u64>,
    }

    /// Sets the policy of one event type (`order.placed`).
    #[must_use]
    pub fn event_policy(mut self, event_type: impl Into<String>, policy: EventPolicy) -> Self {
        self.policies.insert(event_type.into(), policy);
        self
    }

    /// The policy of an event type.
    pub(super) fn policy_of(&self, event_type: &str) -> &EventPolicy {
        self.policies.get(event_type).unwrap_or(&self.policy)
    }

    pub(super) fn check(&self) -> Result<(), RelayError> {
        let fail = |text: String| Err(RelayError::Config(text));
        let times = [
            (
                "lease_ttl",
                self.lease_ttl,
                Duration::from_millis(300),
                LEASE_TTL_MAX,
            ),
            (
                "store_timeout",
                self.store_timeout,
                Duration::from_millis(100),
                Duration::from_secs(60),
            ),
        ];
        for (name, time, min, max) in times {
            if !(min..=max).contains(&time) {
                return fail(format!("{name} is {time:?}; use {min:?} to {max:?}"));
            }
        }
        if !(1..=10_000).contains(&self.batch.get()) {
            return fail(format!("batch is {}; use 1 to 10000", self.batch));
        }
        if self.buffer_bytes == 0 {
            return fail("buffer_bytes is 0; use at least the size of a large payload".to_owned());
        }
        if !(1..=1024).contains(&self.window) {
            return fail(format!("window is {}; use 1 to 1024", self.window));
        }
        if self.poll_min.is_zero() || self.poll_min > self.poll_max {
            return fail(format!(
                "poll_min is {:?} and poll_max {:?}; use 0 < poll_min <= poll_max",
                self.poll_min, self.poll_max
            ));
        }
        check_backoff("backoff", &self.backoff)?;
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

fn check_backoff(what: &str, backoff: &Backoff) -> Result<(), RelayError> {
    if backoff.min.is_zero() || backoff.min > backoff.max {
        return Err(RelayError::Config(format!(
            "{what} is {backoff:?}; use 0 < min <= max"
        )));
    }
    Ok(())
}
