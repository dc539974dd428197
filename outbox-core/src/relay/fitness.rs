//! Whether this relay can do its work, and what it tells the others.
//!
//! A relay may reach its database and not the broker, or fetch nothing although it renews its leases. Its partitions are better off with others then, if others
//! can do better. Invariants: a relay calls itself ailing only after it has failed for as long as a lease lasts, and fit only after its publisher has succeeded
//! lately. So a relay that is fit beside an ailing one has succeeded since the other began to fail: while the broker is away for all, none is fit, and
//! no partition moves.
//!
//! A relay that has handed everything over comes back by a probe, which only reads, and then by a trial. The trial does not begin before `lease_ttl` has passed,
//! so that others have had time to take its partitions over. It ends with the first failure that is not a message's own fault, with the first delivery, or after
//! `lease_ttl` and `store_timeout` together: the relay is ailing again if the broker refused all that it got, else recovered. Not here: the shares that follow from
//! this, see [`ownership`](super::ownership).

use std::time::Duration;

use tokio::time::Instant;

use crate::retry::Backoff;
use crate::store::{Fitness, Relays};

/// The longest pause between two probes, short enough that health does not forget what is wrong in between.
const PROBE_MAX: Duration = Duration::from_secs(60);

/// The longest pause between two trials that fail. A message that is sent in one is late by the time that it takes to fail.
const TRIAL_MAX: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Checkup {
    /// How long a failure lasts before others are asked to help: as long as they would wait for a relay that died.
    patience: Duration,
    /// How long a trial lasts without messages to try with: longer than a failure takes to show.
    trial: Duration,
    state: State,
    /// The last time that a publish or a probe succeeded.
    proved_at: Option<Instant>,
    /// Since when probes have failed.
    probes_failing: Option<Instant>,
    /// Probes that failed in a row.
    failed_probes: u32,
    probe_at: Instant,
    /// Times that it became ailing soon after it had recovered.
    relapses: u32,
    /// No trial before this; during a trial, when it began.
    trial_at: Instant,
    recovered_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Working,
    Ailing,
    Trying,
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

    /// What others are told.
    pub(super) fn fitness(&self) -> Fitness {
        match self.state {
            State::Ailing => Fitness::Ailing,
            State::Trying => Fitness::Trying,
            State::Working if self.is_proved() => Fitness::Fit,
            State::Working => Fitness::Unproven,
        }
    }

    pub(super) fn is_ailing(&self) -> bool {
        self.state == State::Ailing
    }

    /// No relay is ailing: no probe is wanted, and the last ones say nothing any more.
    pub(super) fn forget_probes(&mut self) {
        if self.state == State::Working {
            self.probes_failing = None;
            self.failed_probes = 0;
        }
    }

    /// Half of the time that an ailing relay has failed for. The other half is for the time until it hears of the success.
    fn is_proved(&self) -> bool {
        self.proved_at.is_some_and(|at| at.elapsed() < self.patience / 2)
    }

    /// Takes note since when the relay has failed at its work. `keeps` says that it has partitions to keep, so that its own messages show what works.
    /// Returns true if the relay is ailing from now on.
    pub(super) fn check(
        &mut self,
        failing_since: Option<Instant>,
        keeps: bool,
        rng: &mut fastrand::Rng,
    ) -> bool {
        let since = [failing_since, self.probes_failing].into_iter().flatten().min();
        match (self.state, since) {
            (State::Working, Some(since)) if since.elapsed() >= self.patience => {
                self.sicken(rng);
                true
            }
            // Its own messages flow. That a probe failed says less, and no other probe might follow.
            (State::Ailing, _) if keeps && failing_since.is_none() => {
                self.recover();
                false
            }
            // It had no message to try with. Others may have some, and keep them until a relay is fit.
            (State::Trying, None) if self.trial_at.elapsed() >= self.trial => {
                self.recover();
                false
            }
            // All messages that it had to try with are refused by now.
            (State::Trying, Some(_)) if self.trial_at.elapsed() >= self.trial => self.failed(rng),
            _ => false,
        }
    }

    fn sicken(&mut self, rng: &mut fastrand::Rng) {
        self.state = State::Ailing;
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

    /// All partitions are given back. A trial that began at once would take them again before others look for what is free.
    pub(super) fn handed_over(&mut self) {
        if self.state == State::Ailing {
            self.trial_at = self.trial_at.max(Instant::now() + self.patience);
        }
    }

    /// The publisher succeeded.
    pub(super) fn proved(&mut self) {
        self.proved_at = Some(Instant::now());
        self.probes_failing = None;
        self.failed_probes = 0;
    }

    /// Messages were fetched, published and settled, which is all that a trial can show.
    pub(super) fn delivered(&mut self) {
        if self.state == State::Trying {
            self.recover();
        }
    }

    /// Something failed through no message's fault. That ends a trial; returns true if there was one.
    pub(super) fn failed(&mut self, rng: &mut fastrand::Rng) -> bool {
        let is_trial = self.state == State::Trying;
        if is_trial {
            self.recovered_at = Some(Instant::now());
            self.sicken(rng);
        }
        is_trial
    }

    /// When to probe broker and database: to come back, to show ailing relays that this one is not, or to learn whether the stream was created anew, if another
    /// relay announces another destination. An ailing relay that still owns partitions probes only if
    /// its own messages have shown nothing since `failed_at`, for four times as long as it waits before it calls itself ailing.
    pub(super) fn next_probe_at(
        &self,
        relays: Relays,
        owns: bool,
        failed_at: Option<Instant>,
    ) -> Option<Instant> {
        match self.state {
            State::Ailing if owns => {
                let idle_at = failed_at? + self.patience * 4;
                Some(idle_at.max(self.probe_at).max(self.trial_at))
            }
            State::Ailing => Some(self.probe_at),
            State::Working => (relays.ailing > 0 || relays.disagreeing > 0).then_some(self.probe_at),
            State::Trying => None,
        }
    }

    /// A probe is over. Returns true if the relay is to publish again: in a trial, or with the partitions that it kept.
    pub(super) fn probed(&mut self, succeeded: bool, owns: bool, rng: &mut fastrand::Rng) -> bool {
        let now = Instant::now();
        if succeeded {
            self.proved();
            self.probe_at = now + self.patience / 4;
            let begins = self.state == State::Ailing && self.trial_at <= now;
            if begins && owns {
                self.recover();
            } else if begins {
                self.state = State::Trying;
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

    /// Probes end when nobody is ailing any more, so the last one may have failed hours ago.
    #[tokio::test(start_paused = true)]
    async fn an_old_probe_that_failed_makes_no_relay_ailing() {
        let lease_ttl = Duration::from_secs(15);
        let mut checkup = Checkup::new(lease_ttl, Duration::from_secs(30));
        let mut rng = fastrand::Rng::with_seed(1);
        assert!(!checkup.probed(false, true, &mut rng));
        checkup.forget_probes();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(!checkup.check(None, true, &mut rng));
        assert_eq!(checkup.fitness(), Fitness::Unproven);

        assert!(!checkup.probed(false, true, &mut rng));
        tokio::time::advance(lease_ttl).await;
        assert!(
            checkup.check(None, true, &mut rng),
            "while somebody is ailing, it counts"
        );
    }

    /// Two ailing relays wait for each other for ever if one of them does not notice that it works again.
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_failed_keeps_no_relay_ailing_whose_messages_flow() {
        let lease_ttl = Duration::from_secs(15);
        let mut rng = fastrand::Rng::with_seed(1);
        for owns in [true, false] {
            let mut checkup = Checkup::new(lease_ttl, Duration::from_secs(30));
            let failing_since = Instant::now();
            tokio::time::advance(lease_ttl).await;
            assert!(checkup.check(Some(failing_since), true, &mut rng));
            // The probe began before the relay called itself ailing, or before it took partitions over.
            assert!(!checkup.probed(false, owns, &mut rng));
            assert!(!checkup.check(Some(failing_since), true, &mut rng));
            assert_eq!(checkup.fitness(), Fitness::Ailing);
            assert!(!checkup.check(None, true, &mut rng));
            tokio::time::advance(lease_ttl).await;
            assert!(!checkup.check(None, true, &mut rng), "and that lasts");
            assert_eq!(checkup.fitness(), Fitness::Unproven);
        }
    }

    /// A relay that is neither fit nor ailing for ever helps nobody.
    #[tokio::test(start_paused = true)]
    async fn every_trial_ends() {
        for (fails, ends) in [(false, Fitness::Unproven), (true, Fitness::Ailing)] {
            let mut checkup = Checkup::new(Duration::from_secs(15), Duration::from_secs(30));
            let mut rng = fastrand::Rng::with_seed(1);
            let failing_since = Instant::now();
            tokio::time::advance(Duration::from_secs(15)).await;
            assert!(checkup.check(Some(failing_since), true, &mut rng));
            while !checkup.probed(true, false, &mut rng) {
                tokio::time::advance(Duration::from_secs(5)).await;
            }
            assert_eq!(checkup.fitness(), Fitness::Trying);
            tokio::time::advance(Duration::from_secs(45)).await;
            let failing_since = fails.then(Instant::now);
            assert_eq!(checkup.check(failing_since, true, &mut rng), fails);
            assert_eq!(checkup.fitness(), ends);
        }
    }
}
