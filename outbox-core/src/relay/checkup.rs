//! The health that a relay announces.
//!
//! Invariants: a relay is unhealthy only after failing for a full lease duration, and healthy only
//! after a recent success of its publisher. So while the broker is down for all relays, no
//! partition moves.
//!
//! A relay without partitions recovers by a probe, which only reads, and a trial, which publishes.
//! Between the handover and the trial lies at least one `lease_ttl`. The first delivery ends the
//! trial as recovered. The first failure not caused by a message ends the trial as unhealthy. After
//! `lease_ttl + store_timeout` the trial ends, as unhealthy only if the broker rejected every
//! message.

use std::time::Duration;

use tokio::time::Instant;

use crate::retry::Backoff;
use crate::store::{RelayHealth, Relays};

/// Maximum interval between probes. It is shorter than the time for which health reports a failure.
const PROBE_MAX: Duration = Duration::from_secs(60);

/// Maximum interval between trials: a failing trial delays its messages.
const TRIAL_MAX: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Checkup {
    patience: Duration,
    trial: Duration,
    state: State,
    proved_at: Option<Instant>,
    probes_failing: Option<Instant>,
    failed_probes: u32,
    probe_at: Instant,
    relapses: u32,
    trial_at: Instant,
    recovered_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Working,
    Unhealthy,
    Recovering,
}

impl Checkup {
    pub(super) fn new(lease_ttl: Duration, store_timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            patience: lease_ttl,
            trial: lease_ttl + store_timeout,
            state: State::Working,
            proved_at: None,
            probes_failing: None,
            failed_probes: 0,
            probe_at: now,
            relapses: 0,
            trial_at: now,
            recovered_at: None,
        }
    }

    pub(super) fn health(&self) -> RelayHealth {
        match self.state {
            State::Unhealthy => RelayHealth::Unhealthy,
            State::Recovering => RelayHealth::Recovering,
            State::Working if self.is_proved() => RelayHealth::Healthy,
            State::Working => RelayHealth::Unknown,
        }
    }

    pub(super) fn is_unhealthy(&self) -> bool {
        self.state == State::Unhealthy
    }

    /// Without unhealthy relays, probe results do not count.
    pub(super) fn forget_probes(&mut self) {
        if self.state == State::Working {
            self.probes_failing = None;
            self.failed_probes = 0;
        }
    }

    /// Whether publishing succeeded within half of `patience`. The rest of that time lets an
    /// unhealthy relay read whether its trial succeeded.
    fn is_proved(&self) -> bool {
        self.proved_at.is_some_and(|at| at.elapsed() < self.patience / 2)
    }

    pub(super) fn check(
        &mut self,
        failing_since: Option<Instant>,
        keeps: bool,
        rng: &mut fastrand::Rng,
    ) -> bool {
        let since = [failing_since, self.probes_failing].into_iter().flatten().min();
        match (self.state, since) {
            (State::Working, Some(since)) if since.elapsed() >= self.patience => {
                self.turn_unhealthy(rng);
                true
            }
            // The relay's messages are published again, so it recovers. It does not wait for
            // another probe, which might never come.
            (State::Unhealthy, _) if keeps && failing_since.is_none() => {
                self.recover();
                false
            }
            // The trial had no message, because other relays may keep all messages until a relay is
            // healthy. So the relay counts as recovered.
            (State::Recovering, None) if self.trial_at.elapsed() >= self.trial => {
                self.recover();
                false
            }
            (State::Recovering, Some(_)) if self.trial_at.elapsed() >= self.trial => self.failed(rng),
            _ => false,
        }
    }

    fn turn_unhealthy(&mut self, rng: &mut fastrand::Rng) {
        self.state = State::Unhealthy;
        let is_relapse = self.recovered_at.is_some_and(|at| at.elapsed() < TRIAL_MAX * 2);
        self.relapses = if is_relapse {
            self.relapses.saturating_add(1)
        } else {
            0
        };
        self.probes_failing = None;
        self.failed_probes = 0;
        let now = Instant::now();
        self.probe_at = now + self.patience / 3;
        self.trial_at = now + pause(self.patience, TRIAL_MAX, self.relapses, rng);
    }

    fn recover(&mut self) {
        self.state = State::Working;
        self.probes_failing = None;
        self.failed_probes = 0;
        self.recovered_at = Some(Instant::now());
    }

    /// An immediate trial would acquire the released partitions before other relays.
    pub(super) fn handed_over(&mut self) {
        if self.state == State::Unhealthy {
            self.trial_at = self.trial_at.max(Instant::now() + self.patience);
        }
    }

    pub(super) fn proved(&mut self) {
        self.proved_at = Some(Instant::now());
        self.probes_failing = None;
        self.failed_probes = 0;
    }

    pub(super) fn delivered(&mut self) {
        if self.state == State::Recovering {
            self.recover();
        }
    }

    /// A failure that no message caused. Returns true if it ended a trial.
    pub(super) fn failed(&mut self, rng: &mut fastrand::Rng) -> bool {
        let is_trial = self.state == State::Recovering;
        if is_trial {
            self.recovered_at = Some(Instant::now());
            self.turn_unhealthy(rng);
        }
        is_trial
    }

    /// A probe lets the relay recover and detects a recreated stream. Unhealthy relays read from it
    /// that this relay works. An unhealthy relay with partitions probes only if nothing has
    /// succeeded or failed for four times `patience` since `failed_at`.
    pub(super) fn next_probe_at(
        &self,
        relays: Relays,
        owns: bool,
        failed_at: Option<Instant>,
    ) -> Option<Instant> {
        match self.state {
            State::Unhealthy if owns => {
                let idle_at = failed_at? + self.patience * 4;
                Some(idle_at.max(self.probe_at).max(self.trial_at))
            }
            State::Unhealthy => Some(self.probe_at),
            State::Working => (relays.unhealthy > 0 || relays.disagreeing > 0).then_some(self.probe_at),
            State::Recovering => None,
        }
    }

    pub(super) fn probed(&mut self, succeeded: bool, owns: bool, rng: &mut fastrand::Rng) -> bool {
        let now = Instant::now();
        if succeeded {
            self.proved();
            self.probe_at = now + self.patience / 4;
            let begins = self.state == State::Unhealthy && self.trial_at <= now;
            if begins && owns {
                self.recover();
            } else if begins {
                self.state = State::Recovering;
                self.trial_at = now;
            }
            return begins;
        }
        self.probes_failing.get_or_insert(now);
        self.probe_at = now + pause(self.patience / 3, PROBE_MAX, self.failed_probes, rng);
        self.failed_probes = self.failed_probes.saturating_add(1);
        false
    }
}

fn pause(first: Duration, max: Duration, failures: u32, rng: &mut fastrand::Rng) -> Duration {
    let backoff = Backoff {
        min: first,
        max: max.max(first),
    };
    backoff.delay(failures.saturating_add(1), rng)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stale_failed_probe_makes_no_relay_unhealthy() {
        let lease_ttl = Duration::from_secs(15);
        let mut checkup = Checkup::new(lease_ttl, Duration::from_secs(30));
        let mut rng = fastrand::Rng::with_seed(1);
        assert!(!checkup.probed(false, true, &mut rng));
        checkup.forget_probes();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(!checkup.check(None, true, &mut rng));
        assert_eq!(checkup.health(), RelayHealth::Unknown);

        assert!(!checkup.probed(false, true, &mut rng));
        tokio::time::advance(lease_ttl).await;
        assert!(
            checkup.check(None, true, &mut rng),
            "a probe counts while a relay is unhealthy"
        );
    }

    /// If publishing did not end the unhealthy state, two unhealthy relays could wait for each
    /// other forever.
    #[tokio::test(start_paused = true)]
    async fn relay_with_flowing_messages_recovers_after_failed_probe() {
        let lease_ttl = Duration::from_secs(15);
        let mut rng = fastrand::Rng::with_seed(1);
        for owns in [true, false] {
            let mut checkup = Checkup::new(lease_ttl, Duration::from_secs(30));
            let failing_since = Instant::now();
            tokio::time::advance(lease_ttl).await;
            assert!(checkup.check(Some(failing_since), true, &mut rng));
            assert!(!checkup.probed(false, owns, &mut rng));
            assert!(!checkup.check(Some(failing_since), true, &mut rng));
            assert_eq!(checkup.health(), RelayHealth::Unhealthy);
            assert!(!checkup.check(None, true, &mut rng));
            tokio::time::advance(lease_ttl).await;
            assert!(!checkup.check(None, true, &mut rng), "and that lasts");
            assert_eq!(checkup.health(), RelayHealth::Unknown);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_trial_ends() {
        for (fails, ends) in [(false, RelayHealth::Unknown), (true, RelayHealth::Unhealthy)] {
            let mut checkup = Checkup::new(Duration::from_secs(15), Duration::from_secs(30));
            let mut rng = fastrand::Rng::with_seed(1);
            let failing_since = Instant::now();
            tokio::time::advance(Duration::from_secs(15)).await;
            assert!(checkup.check(Some(failing_since), true, &mut rng));
            while !checkup.probed(true, false, &mut rng) {
                tokio::time::advance(Duration::from_secs(5)).await;
            }
            assert_eq!(checkup.health(), RelayHealth::Recovering);
            tokio::time::advance(Duration::from_secs(45)).await;
            let failing_since = fails.then(Instant::now);
            assert_eq!(checkup.check(failing_since, true, &mut rng), fails);
            assert_eq!(checkup.health(), ends);
        }
    }
}
