//! The health of a relay or an inbox, for probes and people.
//!
//! Invariant: reading the health never waits for the relay.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::relay::RelayConfig;
use crate::store::{RelayTrouble, TroubleClass};

/// Health of a relay or an inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// Relay or inbox runs without a problem.
    Alive,
    /// Starting, stopping, or running with a problem: notify an operator. A restart does not help.
    Degraded {
        /// One sentence per problem.
        reasons: Vec<String>,
    },
    /// Running without progress although there may be work: page an operator. A restart does not
    /// help.
    Stuck {
        /// The problem.
        reason: String,
    },
    /// Relay or inbox has not started, has ended, or hangs in its loop or a handler: restart the
    /// process.
    Stopped {
        /// The problem.
        reason: String,
    },
}

impl Health {
    /// For liveness probes: true unless [`Health::Stopped`]. Independent of outages of broker or
    /// database.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !matches!(self, Self::Stopped { .. })
    }

    /// For readiness probes: true only for [`Health::Alive`]. Not for services that also answer
    /// requests, which can record events while the broker is down.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Alive)
    }

    /// The worst health of several parts (stopped, stuck, degraded, alive). Lists all reasons,
    /// worst first, each prefixed with the part's name. Without parts: [`Health::Alive`].
    #[must_use]
    pub fn together<N: fmt::Display>(parts: impl IntoIterator<Item = (N, Self)>) -> Self {
        let (mut stopped, mut stuck, mut degraded) = (Vec::new(), Vec::new(), Vec::new());
        for (name, health) in parts {
            match health {
                Self::Alive => {}
                Self::Degraded { reasons } => {
                    degraded.extend(reasons.iter().map(|reason| format!("{name}: {reason}")));
                }
                Self::Stuck { reason } => stuck.push(format!("{name}: {reason}")),
                Self::Stopped { reason } => stopped.push(format!("{name}: {reason}")),
            }
        }
        let (is_stopped, is_stuck) = (!stopped.is_empty(), !stuck.is_empty());
        let reasons = [stopped, stuck, degraded].concat();
        match (is_stopped, is_stuck, reasons.is_empty()) {
            (true, _, _) => Self::Stopped {
                reason: reasons.join("; "),
            },
            (false, true, _) => Self::Stuck {
                reason: reasons.join("; "),
            },
            (false, false, false) => Self::Degraded { reasons },
            (false, false, true) => Self::Alive,
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alive => f.write_str("alive"),
            Self::Degraded { reasons } => write!(f, "degraded: {}", reasons.join("; ")),
            Self::Stuck { reason } => write!(f, "stuck: {reason}"),
            Self::Stopped { reason } => write!(f, "stopped: {reason}"),
        }
    }
}

/// Reads a relay's health in this process. Clones read the same relay.
#[derive(Debug, Clone)]
pub struct HealthCheck {
    vitals: Arc<Mutex<Vitals>>,
    silence_max: Duration,
    stuck_after: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Vitals {
    pub(crate) turned_at: Option<Instant>,
    pub(crate) store: [Answers; Activity::COUNT],
    pub(crate) broker_failing: Option<Trouble>,
    pub(crate) refused: usize,
    pub(crate) refusal: String,
    pub(crate) waiting_since: Option<Instant>,
    pub(crate) handed_over: bool,
    pub(crate) pauses: Vec<String>,
    pub(crate) halted: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    Fetching,
    FetchingWaiting,
    Settling,
    Keeping,
}

impl Activity {
    pub(crate) const ALL: [Self; 4] = [
        Self::Fetching,
        Self::FetchingWaiting,
        Self::Settling,
        Self::Keeping,
    ];
    pub(crate) const COUNT: usize = Self::ALL.len();

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Fetching => "fetching",
            Self::FetchingWaiting => "fetching waiting messages",
            Self::Settling => "settling",
            Self::Keeping => "keeping leases",
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Answers {
    pub(crate) last: Option<Instant>,
    pub(crate) failing: Option<Trouble>,
}

#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    since: Instant,
    noted_at: Instant,
    reason: String,
    class: TroubleClass,
}

/// Minimum silence that health reports; at least two lease durations.
const SILENCE_MIN: Duration = Duration::from_secs(30);

/// An activity without a new failure for this time has stopped, because it exceeds the longest
/// back-off plus the longest `store_timeout`.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);

impl Trouble {
    pub(crate) fn note(trouble: &mut Option<Self>, class: TroubleClass, reason: impl Into<String>) {
        let now = Instant::now();
        let since = Self::lasting(trouble).map_or(now, |trouble| trouble.since);
        *trouble = Some(Self {
            since,
            noted_at: now,
            reason: reason.into(),
            class,
        });
    }

    fn lasting(trouble: &Option<Self>) -> Option<&Self> {
        trouble
            .as_ref()
            .filter(|trouble| trouble.noted_at.elapsed() < FORGOTTEN_AFTER)
    }
}

impl HealthCheck {
    /// Health before the start.
    #[must_use]
    pub fn of(config: &RelayConfig) -> Self {
        Self::new(SILENCE_MIN.max(config.lease_ttl * 2), config.stuck_after)
    }

    pub(crate) fn new(silence_max: Duration, stuck_after: Duration) -> Self {
        Self {
            vitals: Arc::default(),
            silence_max,
            stuck_after,
        }
    }

    pub(crate) fn update(&self, update: impl FnOnce(&mut Vitals)) {
        update(&mut self.vitals.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn trouble(&self) -> Option<RelayTrouble> {
        let vitals = self.vitals.lock().unwrap_or_else(PoisonError::into_inner);
        let of_store = vitals.store.iter().map(|answers| &answers.failing);
        let of_store = of_store
            .filter_map(Trouble::lasting)
            .min_by_key(|trouble| trouble.since);
        let trouble = Trouble::lasting(&vitals.broker_failing).or(of_store)?;
        Some(RelayTrouble {
            class: trouble.class,
            error: trouble.reason.clone(),
            failing_for: trouble.since.elapsed(),
        })
    }

    /// Current health.
    #[must_use]
    pub fn now(&self) -> Health {
        let vitals = self.vitals.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(turned_at) = vitals.turned_at else {
            return Health::Stopped {
                reason: "the relay is not running".to_owned(),
            };
        };
        if turned_at.elapsed() > self.silence_max {
            let reason = format!(
                "the relay has made no progress for {:?}; restart the process",
                turned_at.elapsed()
            );
            return Health::Stopped { reason };
        }
        let (mut reasons, failing_since) = vitals.failures();
        let is_long = |since: Instant| since.elapsed() >= self.stuck_after;
        if vitals.handed_over {
            reasons.push("this relay has released its partitions until it recovers".to_owned());
        } else if vitals.waiting_since.into_iter().chain(failing_since).any(is_long) {
            let reason = format!(
                "nothing was published for {:?}, although messages may be due; {}",
                self.stuck_after,
                reasons.join("; ")
            );
            return Health::Stuck { reason };
        }
        if vitals.refused > 0 {
            reasons.push(format!(
                "the database rejects the verdicts on {} messages: {}",
                vitals.refused, vitals.refusal
            ));
        }
        reasons.extend(vitals.pauses.iter().cloned());
        if vitals.halted > 0 {
            reasons.push(match vitals.halted {
                1 => "1 aggregate is halted by a dead letter; retry or skip the dead letter".to_owned(),
                halted => {
                    format!("{halted} aggregates are halted by dead letters; retry or skip the dead letters")
                }
            });
        }
        if reasons.is_empty() {
            Health::Alive
        } else {
            Health::Degraded { reasons }
        }
    }
}

impl Vitals {
    fn failures(&self) -> (Vec<String>, Vec<Instant>) {
        let (mut reasons, mut failing_since) = (Vec::new(), Vec::new());
        for activity in Activity::ALL {
            let Answers { last, failing } = &self.store[activity as usize];
            if let Some(Trouble { since, reason, .. }) = Trouble::lasting(failing) {
                let last = last.map_or("never".to_owned(), |last| format!("{:?} ago", last.elapsed()));
                let activity = activity.as_str();
                reasons.push(format!(
                    "database has been failing for {:?}: {activity}: {reason} (last success: {last})",
                    since.elapsed()
                ));
                failing_since.push(*since);
            }
        }
        if let Some(Trouble { since, reason, .. }) = Trouble::lasting(&self.broker_failing) {
            reasons.push(format!(
                "broker has been failing for {:?}: {reason}",
                since.elapsed()
            ));
            failing_since.push(*since);
        }
        (reasons, failing_since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publisher::FailureClass;

    const BROKER: TroubleClass = TroubleClass::Broker(FailureClass::Unknown);

    #[tokio::test(start_paused = true)]
    async fn only_a_stopped_relay_is_not_alive() {
        let check = HealthCheck::new(Duration::from_secs(30), Duration::from_secs(300));
        assert!(!check.now().is_alive(), "not started");
        check.update(|vitals| vitals.turned_at = Some(Instant::now()));
        assert_eq!(check.now(), Health::Alive);
        check.update(|vitals| Trouble::note(&mut vitals.broker_failing, BROKER, "no answer"));
        tokio::time::advance(Duration::from_secs(10)).await;
        check.update(|vitals| Trouble::note(&mut vitals.broker_failing, BROKER, "still no answer"));
        assert_eq!(
            check.now().to_string(),
            "degraded: broker has been failing for 10s: still no answer"
        );
        check.update(|vitals| vitals.waiting_since = Some(Instant::now()));
        tokio::time::advance(Duration::from_secs(300)).await;
        check.update(|vitals| vitals.turned_at = Some(Instant::now()));
        let stuck = check.now();
        assert!(
            stuck
                .to_string()
                .starts_with("stuck: nothing was published for 300s"),
            "{stuck}"
        );
        assert!(stuck.is_alive() && !stuck.is_ready(), "a restart does not help");
        check.update(|vitals| {
            vitals.waiting_since = None;
            vitals.broker_failing = None;
        });
        assert_eq!(check.now(), Health::Alive);
        tokio::time::advance(Duration::from_secs(31)).await;
        let stopped = check.now();
        assert!(
            stopped
                .to_string()
                .starts_with("stopped: the relay has made no progress"),
            "{stopped}"
        );
        assert!(!stopped.is_alive() && !stopped.is_ready());
    }

    #[test]
    fn combined_health_is_the_worst_with_all_reasons() {
        let stopped = Health::Stopped {
            reason: "gone".to_owned(),
        };
        let (alive, degraded, stuck) = (
            Health::Alive,
            Health::Degraded {
                reasons: vec!["slow".to_owned(), "late".to_owned()],
            },
            Health::Stuck {
                reason: "over".to_owned(),
            },
        );
        let together = |parts: &[(&str, &Health)]| {
            Health::together(parts.iter().map(|(name, health)| (*name, (*health).clone())))
        };
        assert_eq!(together(&[]), Health::Alive);
        assert_eq!(together(&[("a", &alive), ("b", &alive)]), Health::Alive);
        let coping = together(&[("a", &alive), ("b", &degraded)]);
        assert_eq!(coping.to_string(), "degraded: b: slow; b: late");
        assert!(coping.is_alive() && !coping.is_ready());
        let worst = together(&[("a", &degraded), ("b", &stuck), ("c", &alive)]);
        assert_eq!(worst.to_string(), "stuck: b: over; a: slow; a: late");
        assert!(worst.is_alive() && !worst.is_ready() && alive.is_ready());
        let worst = together(&[("a", &degraded), ("b", &stuck), ("c", &stopped)]);
        assert_eq!(worst.to_string(), "stopped: c: gone; b: over; a: slow; a: late");
        assert!(!worst.is_alive() && !worst.is_ready());
    }
}
