//! How an inbox and its consumers are doing, for probes and people.
//!
//! The runtime notes what happens in small records, and a check reads them at any time. Invariant:
//! neither waits for the other. The verdict is a [`Health`], as that of a relay. Not here: what the
//! runtime does about trouble, see [`crate::runtime::dispatcher`].

#[cfg(test)]
mod tests;
mod vitals;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::Health;
use tokio::time::Instant;

pub(crate) use vitals::ConsumerVitals;

/// Answers for an inbox that runs elsewhere, without waiting for it. Clones are alike; see
/// [`Inbox::health`](crate::Inbox::health).
#[derive(Debug, Clone)]
pub struct InboxHealthCheck {
    vitals: Arc<Mutex<InboxVitals>>,
    stuck_after: Duration,
}

/// How a consumer of an inbox is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerHealth {
    /// Its name.
    pub consumer: &'static str,
    /// Whether it runs.
    pub state: ConsumerState,
    /// The verdict.
    pub health: Health,
}

/// Whether a consumer runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerState {
    /// It runs, or gives back what it has not handled after the stop of its inbox.
    Running,
    /// Somebody has paused it ([`PausedConsumers`](crate::PausedConsumers)): it receives and begins
    /// nothing. The verdict does not change by that.
    Paused {
        /// Since this process noticed.
        paused_for: Duration,
    },
    /// It has stopped.
    Stopped {
        /// What stopped it; `None` for the stop of its inbox.
        reason: Option<String>,
    },
}

impl InboxHealthCheck {
    pub(super) fn new(stuck_after: Duration) -> Self {
        Self {
            vitals: Arc::default(),
            stuck_after,
        }
    }

    /// How the inbox is doing now.
    ///
    /// * [`Health::Alive`]: all its consumers run and receive.
    /// * [`Health::Degraded`]: it starts, it stops, or a subscription is away for less than [`InboxConfig::stuck_after`](crate::InboxConfig#structfield.stuck_after).
    /// * [`Health::Stuck`]: for `stuck_after` a subscription is away, the database cannot be reached at the start, or nothing happens to the messages that were begun.
    /// * [`Health::Stopped`]: it does not run (not started, stopped, or ended with an error); a consumer has stopped or has not done anything for 90 s; or a handler is
    ///   5 s beyond its time limit.
    #[must_use]
    pub fn now(&self) -> Health {
        let vitals = self.lock();
        match &vitals.phase {
            Phase::New => not_running("it is not running"),
            Phase::Starting { since, trouble } => {
                let trouble = trouble.as_deref().unwrap_or("the start is not finished yet");
                let reason = format!("it has been starting for {:?}: {trouble}", whole(since.elapsed()));
                if since.elapsed() >= self.stuck_after {
                    stuck(reason)
                } else {
                    degraded(reason)
                }
            }
            Phase::Running => Health::together(vitals.consumers.iter().map(|consumer| {
                let ConsumerHealth { consumer, health, .. } = consumer.report(self.stuck_after);
                (format!("consumer `{consumer}`"), health)
            })),
            Phase::Stopping => degraded("it is stopping"),
            Phase::Stopped { reason: None } => not_running("it has stopped"),
            Phase::Stopped { reason: Some(reason) } => not_running(format!("it has stopped: {reason}")),
        }
    }

    /// How its consumers are doing, in the order of their names: those of the current run, or of
    /// the last one. Empty before all are subscribed.
    #[must_use]
    pub fn consumers(&self) -> Vec<ConsumerHealth> {
        let consumers = self.lock().consumers.clone();
        consumers
            .iter()
            .map(|consumer| consumer.report(self.stuck_after))
            .collect()
    }

    /// Notes that a run begins, until what is returned is dropped.
    pub(super) fn begin(&self) -> Run {
        *self.lock() = InboxVitals {
            phase: Phase::Starting {
                since: Instant::now(),
                trouble: None,
            },
            consumers: Vec::new(),
        };
        Run {
            check: self.clone(),
            reason: Some("its future was dropped".to_owned()),
        }
    }

    /// Notes why the start cannot go on.
    pub(super) fn cannot_start(&self, reason: &str) {
        if let Phase::Starting { trouble, .. } = &mut self.lock().phase {
            *trouble = Some(reason.to_owned());
        }
    }

    pub(super) fn running(&self, consumers: impl Iterator<Item = Arc<ConsumerVitals>>) {
        let mut vitals = self.lock();
        vitals.phase = Phase::Running;
        vitals.consumers = consumers.collect();
    }

    pub(super) fn stopping(&self) {
        self.lock().phase = Phase::Stopping;
    }

    fn lock(&self) -> MutexGuard<'_, InboxVitals> {
        self.vitals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an inbox notes of itself.
#[derive(Debug, Default)]
struct InboxVitals {
    phase: Phase,
    consumers: Vec<Arc<ConsumerVitals>>,
}

#[derive(Debug, Default)]
enum Phase {
    /// It was never run.
    #[default]
    New,
    Starting {
        since: Instant,
        trouble: Option<String>,
    },
    Running,
    Stopping,
    Stopped {
        /// An error, if it did not end as it was asked to.
        reason: Option<String>,
    },
}

/// A run of an inbox. Dropped, it has ended.
#[derive(Debug)]
pub(super) struct Run {
    check: InboxHealthCheck,
    reason: Option<String>,
}

impl Run {
    /// Notes how it ended: `None` if it was asked to.
    pub(super) fn ended(mut self, reason: Option<String>) {
        self.reason = reason;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let reason = self.reason.take();
        self.check.lock().phase = Phase::Stopped { reason };
    }
}

fn stuck(reason: impl Into<String>) -> Health {
    Health::Stuck {
        reason: reason.into(),
    }
}

fn not_running(reason: impl Into<String>) -> Health {
    Health::Stopped {
        reason: reason.into(),
    }
}

fn degraded(reason: impl Into<String>) -> Health {
    Health::Degraded {
        reasons: vec![reason.into()],
    }
}

/// Whole seconds, for people.
fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}
