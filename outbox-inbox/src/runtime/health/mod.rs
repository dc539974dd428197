//! Health of an inbox and its consumers.
//!
//! Invariant: inbox and health check never wait for each other.

#[cfg(test)]
mod tests;
mod vitals;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::Health;
use tokio::time::Instant;

pub(crate) use vitals::ConsumerVitals;

/// Reports the health of an inbox without blocking. See [`Inbox::health`](crate::Inbox::health).
#[derive(Debug, Clone)]
pub struct InboxHealthCheck {
    vitals: Arc<Mutex<InboxVitals>>,
    stuck_after: Duration,
}

/// Health of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerHealth {
    /// Name of the consumer.
    pub consumer: &'static str,
    /// Whether the consumer runs.
    pub state: ConsumerState,
    /// Health of the consumer.
    pub health: Health,
}

/// State of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerState {
    /// The consumer runs, or returns unhandled messages after the stop of its inbox.
    Running,
    /// An operator has paused the consumer ([`PausedConsumers`](crate::PausedConsumers)): it
    /// receives and starts no messages.
    Paused {
        /// Time since this process detected the pause.
        paused_for: Duration,
    },
    /// The consumer has stopped.
    Stopped {
        /// Why the consumer stopped; `None` if the inbox was stopped.
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

    /// Returns the current health of the inbox.
    ///
    /// * [`Health::Alive`]: all consumers run and receive.
    /// * [`Health::Degraded`]: the inbox is starting or stopping, or a subscription is down for
    ///   less than [`InboxConfig::stuck_after`](crate::InboxConfig#structfield.stuck_after).
    /// * [`Health::Stuck`]: for `stuck_after`, a subscription is down, the database is unreachable
    ///   at the start, or started messages make no progress.
    /// * [`Health::Stopped`]: the inbox is not running; a consumer has stopped or made no progress
    ///   for 90 s; or a handler exceeds its timeout by 5 s.
    #[must_use]
    pub fn now(&self) -> Health {
        let vitals = self.lock();
        match &vitals.phase {
            Phase::New => not_running("the inbox is not running"),
            Phase::Starting { since, trouble } => {
                let trouble = trouble.as_deref().unwrap_or("start not finished");
                let reason = format!("starting for {:?}: {trouble}", whole(since.elapsed()));
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
            Phase::Stopping => degraded("the inbox is stopping"),
            Phase::Stopped { reason: None } => not_running("the inbox has stopped"),
            Phase::Stopped { reason: Some(reason) } => {
                not_running(format!("the inbox has stopped: {reason}"))
            }
        }
    }

    /// Returns the health of the consumers of the current or last run, by name. Empty until all
    /// consumers are subscribed.
    #[must_use]
    pub fn consumers(&self) -> Vec<ConsumerHealth> {
        let consumers = self.lock().consumers.clone();
        consumers
            .iter()
            .map(|consumer| consumer.report(self.stuck_after))
            .collect()
    }

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
            reason: Some("the future of `run` was dropped".to_owned()),
        }
    }

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

#[derive(Debug, Default)]
struct InboxVitals {
    phase: Phase,
    consumers: Vec<Arc<ConsumerVitals>>,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    New,
    Starting {
        since: Instant,
        trouble: Option<String>,
    },
    Running,
    Stopping,
    Stopped {
        reason: Option<String>,
    },
}

#[derive(Debug)]
pub(super) struct Run {
    check: InboxHealthCheck,
    reason: Option<String>,
}

impl Run {
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

fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}
