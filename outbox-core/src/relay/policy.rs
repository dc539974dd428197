//! What follows from a failure: who waits, how long, and when a message is dead-lettered.
//!
//! Invariant: only a failure that is proven to be the message's own fault uses attempts or makes it a dead letter. A broker that is silent pauses the relay, and
//! nothing is recorded. A message that is refused while the broker answers blocks its aggregate, never the single row, so that nothing overtakes it.

use std::time::Duration;

use tokio::time::Instant;

use super::config::{EventPolicy, PoisonPolicy, RelayConfig};
use crate::failure::describe;
use crate::publisher::{FailureClass, PublishError};
use crate::retry::Backoff;
use crate::store::{FetchedRow, Verdict};

/// Trial publishes after a pause, to see whether the broker is back.
const TRIALS_SILENT: usize = 16;
/// The same while the broker answers but refuses: more, since others may be waiting behind the refused messages, and each round gets some out of the way.
const TRIALS_REFUSING: usize = 256;
/// The same when the broker refuses messages that it has refused before.
const TRIALS_REFUSING_AGAIN: usize = 64;
/// Refusals in a row after which the relay slows down.
const REFUSALS_MAX: u32 = 16;
/// Longest pause while the broker answers.
const REFUSING_PAUSE_MAX: Duration = Duration::from_secs(1);

/// What becomes of a message that was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The broker is silent: send it again, nothing is recorded.
    Again,
    /// Recorded: it waits, or is dead-lettered.
    Settled(Verdict),
}

/// What a failed publish means for its message. `alive` says that the broker confirmed something after this publish began.
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

/// The verdict that makes a message a dead letter.
pub(super) fn dead_letter(error: String, row: &FetchedRow, config: &RelayConfig) -> Verdict {
    Verdict::Dead {
        error,
        halt: row.sequenced && policy_of(row, config).on_poison == PoisonPolicy::HaltAggregate,
    }
}

/// A row that cannot be read has no type that could be believed.
fn policy_of<'a>(row: &FetchedRow, config: &'a RelayConfig) -> &'a EventPolicy {
    match &row.message {
        Ok(message) => config.policy_of(&message.event_type),
        Err(_) => &config.policy,
    }
}

/// Decides how much may be sent while the broker is in trouble.
#[derive(Debug)]
pub(super) struct Breaker {
    backoff: Backoff,
    /// Pauses since the last confirmation, for silence.
    silences: u32,
    /// Nothing was confirmed since [`try_again`](Self::try_again), so that nothing is known of the broker.
    tries: bool,
    /// Refusals since the last confirmation.
    refusals: u32,
    /// Of those, refusals of messages that were refused before.
    repeated: u32,
    closed_until: Option<Instant>,
    /// The first failure since the last confirmation.
    failing_since: Option<Instant>,
    /// The last failure.
    failed_at: Option<Instant>,
    /// The last confirmation.
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

    /// Nothing is known of the broker any more: a few messages are sent, to see.
    pub(super) fn try_again(&mut self) {
        let confirmed_at = self.confirmed_at;
        self.confirmed();
        self.confirmed_at = confirmed_at;
        self.tries = true;
    }

    /// A publish failed through no fault of its message: while nothing is known of the broker, that means as much as silence.
    pub(super) fn in_vain(&mut self) {
        if self.tries {
            self.silences = self.silences.max(1);
        }
    }

    /// Since when the broker has been silent, or has refused whatever it gets. A few refusals do not count.
    pub(super) fn failing_since(&self) -> Option<Instant> {
        let is_failing = self.silences > 0 || self.is_refusing();
        self.failing_since.filter(|_| is_failing)
    }

    /// When a publish last failed, if the broker is failing.
    pub(super) fn failed_at(&self) -> Option<Instant> {
        self.failing_since().and(self.failed_at)
    }

    /// Whether the broker confirmed something after this.
    pub(super) fn is_alive_since(&self, time: Instant) -> bool {
        self.confirmed_at.is_some_and(|at| at > time)
    }

    /// The broker was silent; returns the pause, if one begins now.
    pub(super) fn silent(&mut self, rng: &mut fastrand::Rng) -> Option<Duration> {
        self.failed();
        if self.pause_end().is_some() {
            return None; // One of those that were on their way when the pause began.
        }
        self.silences = self.silences.saturating_add(1);
        Some(self.pause(self.backoff.delay(self.silences, rng)))
    }

    /// The broker refused a message, `again` if it was refused before; returns the pause, if one begins now.
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

    /// When the present pause ends, if there is one.
    pub(super) fn pause_end(&self) -> Option<Instant> {
        self.closed_until.filter(|end| *end > Instant::now())
    }

    /// Whether the broker has refused everything lately: then messages that it has not refused yet go first.
    pub(super) fn is_refusing(&self) -> bool {
        self.refusals >= REFUSALS_MAX
    }

    /// How many messages may be unconfirmed now, of a window.
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
    fn outages_use_no_attempts_and_make_no_dead_letters() {
        let config = RelayConfig::default();
        assert_eq!(
            judged(FailureClass::Unknown, u32::MAX, false, &config),
            Outcome::Again
        );
        for class in [
            FailureClass::Unknown,
            FailureClass::Transient,
            FailureClass::Backpressure,
            FailureClass::Configuration,
        ] {
            let outcome = judged(class, u32::MAX, true, &config);
            assert!(
                matches!(outcome, Outcome::Settled(Verdict::Blocked { attempt: false, .. })),
                "{class:?}: {outcome:?}"
            );
        }
    }

    #[test]
    fn permanent_failures_are_dead_letters_at_once_and_unclassified_ones_at_the_limit() {
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
    async fn a_silent_broker_is_tried_more_and_more_rarely() {
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

    /// One message with a fault of its own would otherwise keep a relay from coming back for as long as there is nothing else to try with.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_while_nothing_is_known_of_the_broker_is_no_silence() {
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
    async fn a_broker_that_refuses_is_tried_at_least_every_second() {
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
