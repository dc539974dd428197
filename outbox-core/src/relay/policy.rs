//! What follows from a failure: who waits, how long, and when a message is given up.
//!
//! Invariant: only what is proven to be the message's own fault uses attempts or parks it. A broker that takes nothing of a batch
//! pauses the relay; a message that is refused while others pass backs off its aggregate, never the single row, so that nothing
//! overtakes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::config::{PoisonPolicy, RelayConfig};
use crate::message::Aggregate;
use crate::publisher::{FailureClass, PublishError};
use crate::retry::Backoff;
use crate::store::Verdict;

/// Aggregates that back off at a time. In an outage each probe adds a few; the oldest are forgotten first, which only means
/// that they are tried earlier.
const BACKING_OFF_MAX: usize = 2000;

/// What a failed publish means for its row; `None` leaves the row untouched.
pub(super) fn verdict(error: &PublishError, attempts: u32, config: &RelayConfig) -> Option<Verdict> {
    match error.class() {
        FailureClass::Unknown
        | FailureClass::Transient
        | FailureClass::Backpressure
        | FailureClass::Configuration => None,
        FailureClass::Unclassified if attempts + 1 < config.attempts_max => Some(Verdict::Failed {
            error: describe(error),
        }),
        FailureClass::Unclassified | FailureClass::Permanent => Some(park(describe(error), config)),
    }
}

/// Whether a failure speaks of the broker. A wrong subject or a refusal says nothing about other messages.
pub(super) fn is_the_brokers(class: FailureClass) -> bool {
    matches!(
        class,
        FailureClass::Unknown | FailureClass::Transient | FailureClass::Backpressure
    )
}

/// Gives a message up.
pub(super) fn park(error: String, config: &RelayConfig) -> Verdict {
    Verdict::Parked {
        error,
        halt: config.on_poison == PoisonPolicy::HaltAggregate,
    }
}

/// The error with its causes, for a column that people read.
pub(super) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Pauses the relay while the broker or the database is failing.
#[derive(Debug)]
pub(super) struct Breaker {
    backoff: Backoff,
    rng: fastrand::Rng,
    failures: u32,
}

impl Breaker {
    pub(super) fn new(backoff: Backoff, rng: fastrand::Rng) -> Self {
        Self {
            backoff,
            rng,
            failures: 0,
        }
    }

    /// Counts a failure and returns how long to pause.
    pub(super) fn trip(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay(self.failures, &mut self.rng)
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(super) fn is_tripped(&self) -> bool {
        self.failures > 0
    }
}

/// Aggregates whose messages failed while those of others passed.
#[derive(Debug)]
pub(super) struct BackingOff {
    backoff: Backoff,
    rng: fastrand::Rng,
    waiting: HashMap<Aggregate, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    failures: u32,
    until: Instant,
}

impl BackingOff {
    pub(super) fn new(backoff: Backoff, rng: fastrand::Rng) -> Self {
        Self {
            backoff,
            rng,
            waiting: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, aggregate: Aggregate) {
        let now = Instant::now();
        if self.waiting.len() >= BACKING_OFF_MAX && !self.waiting.contains_key(&aggregate) {
            let soonest = self
                .waiting
                .iter()
                .min_by_key(|(_, w)| w.until)
                .map(|(a, _)| a.clone());
            soonest.map(|a| self.waiting.remove(&a));
        }
        let waiting = self.waiting.entry(aggregate).or_insert(Waiting {
            failures: 0,
            until: now,
        });
        waiting.failures = waiting.failures.saturating_add(1);
        waiting.until = now + self.backoff.delay(waiting.failures, &mut self.rng);
    }

    /// All that failed lately, whether they still wait or not.
    pub(super) fn suspects(&self) -> Vec<Aggregate> {
        self.waiting.keys().cloned().collect()
    }

    /// Those that still wait. One that has waited long enough is forgotten a while after its last failure, so that it is
    /// remembered if it fails again at once.
    pub(super) fn aggregates(&mut self) -> Vec<Aggregate> {
        let now = Instant::now();
        let memory = self.backoff.max;
        self.waiting.retain(|_, waiting| waiting.until + memory > now);
        self.waiting
            .iter()
            .filter(|(_, waiting)| waiting.until > now)
            .map(|(a, _)| a.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(class: FailureClass) -> PublishError {
        PublishError::new(class, "refused").with_source(std::io::Error::other("disk"))
    }

    #[test]
    fn outages_use_no_attempts_and_park_nothing() {
        let config = RelayConfig::default();
        for class in [
            FailureClass::Unknown,
            FailureClass::Transient,
            FailureClass::Backpressure,
            FailureClass::Configuration,
        ] {
            assert_eq!(verdict(&error(class), u32::MAX - 1, &config), None, "{class:?}");
        }
    }

    #[test]
    fn permanent_failures_park_at_once_and_unknown_ones_at_the_limit() {
        let config = RelayConfig::default().attempts_max(3);
        let text = "refused (permanent): disk".to_owned();
        assert_eq!(
            verdict(&error(FailureClass::Permanent), 0, &config),
            Some(Verdict::Parked {
                error: text,
                halt: true
            })
        );
        let unclassified = error(FailureClass::Unclassified);
        assert!(matches!(
            verdict(&unclassified, 1, &config),
            Some(Verdict::Failed { .. })
        ));
        assert!(matches!(
            verdict(&unclassified, 2, &config),
            Some(Verdict::Parked { .. })
        ));
        let config = config.on_poison(PoisonPolicy::ParkAndContinue);
        assert!(matches!(
            verdict(&unclassified, 2, &config),
            Some(Verdict::Parked { halt: false, .. })
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn aggregates_back_off_longer_each_time_and_are_bounded() {
        let backoff = Backoff {
            min: Duration::from_secs(1),
            max: Duration::from_secs(60),
        };
        let mut backing_off = BackingOff::new(backoff, fastrand::Rng::with_seed(1));
        let order = Aggregate::new("order", "1");
        backing_off.add(order.clone());
        assert!(backing_off.aggregates().contains(&order));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(backing_off.aggregates().is_empty());
        backing_off.add(order.clone());
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(backing_off.aggregates().contains(&order));
        for id in 0..2 * BACKING_OFF_MAX {
            backing_off.add(Aggregate::new("order", id.to_string()));
        }
        assert_eq!(backing_off.aggregates().len(), BACKING_OFF_MAX);
    }
}
