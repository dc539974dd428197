//! What follows a failure: which messages wait, how long, and when a message is dead-lettered.
//!
//! Invariant: only a failure proven to be caused by the message uses attempts. If the broker does
//! not answer, the relay pauses and records nothing. A rejected message blocks its aggregate.

use std::time::Duration;

use tokio::time::Instant;

use super::config::{EventPolicy, PoisonPolicy, RelayConfig};
use crate::failure::describe;
use crate::publisher::{FailureClass, PublishError};
use crate::retry::Backoff;
use crate::store::{FetchedRow, Verdict};

const TRIALS_SILENT: usize = 16;
const TRIALS_REFUSING: usize = 256;
const TRIALS_REFUSING_AGAIN: usize = 64;
const REFUSALS_MAX: u32 = 16;
const REFUSING_PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Again,
    Settled(Verdict),
}

pub(super) fn judge(
    error: &PublishError,
    row: &FetchedRow,
    alive: bool,
    config: &RelayConfig,
    rng: &mut fastrand::Rng,
) -> Outcome {
    let policy = policy_of(row, config);
    let mut blocked = |attempt| {
        Outcome::Settled(Verdict::Blocked {
            delay: policy.backoff.delay(row.failures.saturating_add(1), rng),
            error: Some(describe(error)),
            attempt,
        })
    };
    match error.class() {
        FailureClass::Unknown if !alive => Outcome::Again,
        FailureClass::Unknown
        | FailureClass::Transient
        | FailureClass::Backpressure
        | FailureClass::Configuration => blocked(false),
        FailureClass::Uncaptured | FailureClass::Unclassified
            if row.attempts.saturating_add(1) < policy.attempts_max =>
        {
            blocked(true)
        }
        FailureClass::Uncaptured | FailureClass::Unclassified | FailureClass::Permanent => {
            Outcome::Settled(dead_letter(describe(error), row, config))
        }
    }
}

pub(super) fn dead_letter(error: String, row: &FetchedRow, config: &RelayConfig) -> Verdict {
    Verdict::Dead {
        error,
        halt: row.sequenced && policy_of(row, config).on_poison == PoisonPolicy::HaltAggregate,
    }
}

fn policy_of<'a>(row: &FetchedRow, config: &'a RelayConfig) -> &'a EventPolicy {
    match &row.message {
        Ok(message) => config.policy_of(&message.event_type),
        Err(_) => &config.policy,
    }
}

#[derive(Debug)]
pub(super) struct Breaker {
    backoff: Backoff,
    silences: u32,
    tries: bool,
    refusals: u32,
    repeated: u32,
    closed_until: Option<Instant>,
    failing_since: Option<Instant>,
    failed_at: Option<Instant>,
    confirmed_at: Option<Instant>,
}

impl Breaker {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            silences: 0,
            tries: false,
            refusals: 0,
            repeated: 0,
            closed_until: None,
            failing_since: None,
            failed_at: None,
            confirmed_at: None,
        }
    }

    pub(super) fn confirmed(&mut self) {
        self.silences = 0;
        self.tries = false;
        self.refusals = 0;
        self.repeated = 0;
        self.closed_until = None;
        self.failing_since = None;
        self.confirmed_at = Some(Instant::now());
    }

    pub(super) fn try_again(&mut self) {
        let confirmed_at = self.confirmed_at;
        self.confirmed();
        self.confirmed_at = confirmed_at;
        self.tries = true;
    }

    /// While the broker's state is unknown, a failure not caused by a message counts as silence.
    pub(super) fn in_vain(&mut self) {
        if self.tries {
            self.silences = self.silences.max(1);
        }
    }

    pub(super) fn failing_since(&self) -> Option<Instant> {
        let is_failing = self.silences > 0 || self.is_refusing();
        self.failing_since.filter(|_| is_failing)
    }

    pub(super) fn failed_at(&self) -> Option<Instant> {
        self.failing_since().and(self.failed_at)
    }

    pub(super) fn is_alive_since(&self, time: Instant) -> bool {
        self.confirmed_at.is_some_and(|at| at > time)
    }

    pub(super) fn silent(&mut self, rng: &mut fastrand::Rng) -> Option<Duration> {
        self.failed();
        if self.pause_end().is_some() {
            return None; // The message was sent before the pause began.
        }
        self.silences = self.silences.saturating_add(1);
        Some(self.pause(self.backoff.delay(self.silences, rng)))
    }

    pub(super) fn refused(&mut self, again: bool, rng: &mut fastrand::Rng) -> Option<Duration> {
        self.failed();
        self.refusals = self.refusals.saturating_add(1);
        self.repeated = self.repeated.saturating_add(u32::from(again));
        if self.refusals < REFUSALS_MAX || self.pause_end().is_some() {
            return None;
        }
        let rounds = self.repeated / REFUSALS_MAX;
        Some(self.pause(self.backoff.delay(rounds, rng).min(REFUSING_PAUSE_MAX)))
    }

    fn failed(&mut self) {
        let now = Instant::now();
        self.failing_since.get_or_insert(now);
        self.failed_at = Some(now);
    }

    fn pause(&mut self, pause: Duration) -> Duration {
        self.closed_until = Some(Instant::now() + pause);
        pause
    }

    pub(super) fn pause_end(&self) -> Option<Instant> {
        self.closed_until.filter(|end| *end > Instant::now())
    }

    /// While the broker rejects messages, messages that were not rejected before are sent first.
    pub(super) fn is_refusing(&self) -> bool {
        self.refusals >= REFUSALS_MAX
    }

    pub(super) fn window(&self, window: usize) -> usize {
        if self.pause_end().is_some() {
            0
        } else if self.silences > 0 || self.tries {
            window.min(TRIALS_SILENT)
        } else if self.is_refusing() {
            window.min(if self.repeated >= REFUSALS_MAX {
                TRIALS_REFUSING_AGAIN
            } else {
                TRIALS_REFUSING
            })
        } else {
            window
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Aggregate;

    fn error(class: FailureClass) -> PublishError {
        PublishError::new(class, "refused").with_source(std::io::Error::other("disk"))
    }

    fn row(attempts: u32) -> FetchedRow {
        FetchedRow {
            row_id: 1,
            id: None,
            partition: 0,
            aggregate: Aggregate::new("order", "1"),
            sequenced: true,
            attempts,
            failures: 0,
            waited: false,
            age: Duration::ZERO,
            message: Err("not needed".to_owned().into()),
        }
    }

    fn judged(class: FailureClass, attempts: u32, alive: bool, config: &RelayConfig) -> Outcome {
        let mut rng = fastrand::Rng::with_seed(1);
        judge(&error(class), &row(attempts), alive, config, &mut rng)
    }

    #[test]
    fn failure_class_decides_when_a_message_is_dead() {
        let config = RelayConfig::default().policy(EventPolicy::default().attempts_max(3));
        let dead = |halt| {
            Outcome::Settled(Verdict::Dead {
                error: "permanent: refused: disk".to_owned(),
                halt,
            })
        };
        assert_eq!(judged(FailureClass::Permanent, 0, true, &config), dead(true));
        for (attempts, ends) in [(0, false), (1, false), (2, true)] {
            let outcome = judged(FailureClass::Unclassified, attempts, true, &config);
            let is_dead = matches!(outcome, Outcome::Settled(Verdict::Dead { .. }));
            assert_eq!(is_dead, ends, "{attempts}: {outcome:?}");
        }
        let goes_on = EventPolicy::default().on_poison(PoisonPolicy::Continue);
        let config = RelayConfig::default().policy(goes_on);
        assert_eq!(judged(FailureClass::Permanent, 0, true, &config), dead(false));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_broker_is_retried_with_back_off() {
        let backoff = Backoff {
            min: Duration::from_millis(100),
            max: Duration::from_secs(30),
        };
        let mut breaker = Breaker::new(backoff);
        let mut rng = fastrand::Rng::with_seed(1);
        assert_eq!(breaker.window(256), 256);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let pause = breaker.silent(&mut rng).unwrap();
            assert_eq!(
                breaker.silent(&mut rng),
                None,
                "one pause for all that were on their way"
            );
            assert_eq!(breaker.window(256), 0);
            tokio::time::advance(pause).await;
            assert_eq!(breaker.window(256), TRIALS_SILENT);
            pauses.push(pause);
        }
        assert!(
            pauses[0] <= backoff.min && pauses[11] > backoff.max / 3,
            "{pauses:?}"
        );
        breaker.confirmed();
        assert_eq!(breaker.window(256), 256);
    }

    #[tokio::test(start_paused = true)]
    async fn rejection_after_silence_ends_the_silence() {
        let mut breaker = Breaker::new(RelayConfig::default().backoff);
        let mut rng = fastrand::Rng::with_seed(1);
        breaker.silent(&mut rng);
        assert!(breaker.failing_since().is_some());
        breaker.try_again();
        assert_eq!(breaker.window(256), TRIALS_SILENT, "a few, to see");
        breaker.refused(false, &mut rng);
        assert_eq!((breaker.failing_since(), breaker.failed_at()), (None, None));
        breaker.in_vain();
        assert!(breaker.failing_since().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn rejecting_broker_is_retried_every_second() {
        let mut breaker = Breaker::new(RelayConfig::default().backoff);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            if let Some(pause) = breaker.refused(false, &mut rng) {
                assert!(pause <= RelayConfig::default().backoff.min, "news: {pause:?}");
                assert_eq!(breaker.window(1024), 0);
                tokio::time::advance(pause).await;
                assert_eq!(breaker.window(1024), TRIALS_REFUSING);
            }
        }
        for _ in 0..10_000 {
            if let Some(pause) = breaker.refused(true, &mut rng) {
                assert!(pause <= REFUSING_PAUSE_MAX);
                tokio::time::advance(pause).await;
            }
        }
        assert_eq!(breaker.window(1024), TRIALS_REFUSING_AGAIN);
        breaker.confirmed();
        assert_eq!(breaker.window(1024), 1024);
        for _ in 0..10 {
            assert_eq!(breaker.refused(true, &mut rng), None, "a few are nothing");
        }
    }
}
