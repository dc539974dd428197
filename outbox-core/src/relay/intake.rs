//! When to look for messages.
//!
//! Invariant: while idle, looks become rarer down to the configured interval, so a lost wake-up costs that interval and nothing else. Absent here:
//! fetching, and whether there is room.

use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use super::config::RelayConfig;
use crate::telemetry;

/// Waiting messages are looked for this many times more rarely than new messages, while nothing waits.
const WAITING_IDLE_FACTOR: u32 = 5;

#[derive(Debug)]
pub(super) struct Intake {
    poll_min: Duration,
    poll_max: Duration,
    walk_at: Instant,
    walk_idle: Duration,
    waiting_at: Instant,
    waiting_idle: Duration,
    /// A commit was reported since the last look for pending messages.
    woken: bool,
    /// The present look follows a report.
    by_wake: bool,
    /// Whether the last looks, with nothing in flight, found nothing: of new messages, and of blocked ones.
    ended: [bool; 2],
}

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Pending messages.
    Walk,
    /// Waiting ones that are due.
    Waiting,
}

impl Intake {
    pub(super) fn new(config: &RelayConfig) -> Self {
        let now = Instant::now();
        Self {
            poll_min: config.poll_min,
            poll_max: config.poll_max,
            walk_at: now,
            walk_idle: config.poll_min,
            waiting_at: now,
            waiting_idle: config.poll_max,
            woken: false,
            by_wake: false,
            ended: [false; 2],
        }
    }

    /// What is due now; of both, what has been due for longer, or new messages if `news_first`.
    pub(super) fn due(&self, news_first: bool) -> Option<Look> {
        let now = Instant::now();
        match (self.walk_at <= now, self.waiting_at <= now) {
            (true, true) if news_first || self.walk_at < self.waiting_at => Some(Look::Walk),
            (_, true) => Some(Look::Waiting),
            (true, false) => Some(Look::Walk),
            (false, false) => None,
        }
    }

    /// When something is due next.
    pub(super) fn next_at(&self) -> Instant {
        self.walk_at.min(self.waiting_at)
    }

    /// Something was committed.
    pub(super) fn wake(&mut self) {
        self.walk_at = self.walk_at.min(Instant::now());
        self.walk_idle = self.poll_min;
        self.woken = true;
    }

    /// Partitions were taken over, or a fetch was given up: look for everything again.
    pub(super) fn restart(&mut self) {
        let now = Instant::now();
        self.walk_at = now;
        self.waiting_at = now;
        self.walk_idle = self.poll_min;
        self.waiting_idle = self.poll_max;
        self.ended = [false; 2];
    }

    /// Something is to be blocked for this long.
    pub(super) fn block(&mut self, delay: Duration) {
        self.waiting_at = self.waiting_at.min(Instant::now() + delay);
        self.waiting_idle = self.poll_max;
    }

    /// A look begins; what wakes from now on concerns the next one.
    pub(super) fn begin(&mut self, look: Look) {
        let now = Instant::now();
        match look {
            Look::Walk => {
                self.walk_at = now + self.poll_max;
                self.by_wake = mem::take(&mut self.woken);
            }
            Look::Waiting => self.waiting_at = now + self.poll_max * WAITING_IDLE_FACTOR,
        }
    }

    /// A look is over. `alone` says that nothing was in flight when it began.
    pub(super) fn end(&mut self, look: Look, found: bool, more: bool, alone: bool) {
        let now = Instant::now();
        self.ended[look as usize] = !found && !more && alone;
        match look {
            Look::Walk => {
                if found {
                    telemetry::found(self.by_wake);
                }
                if found || more {
                    self.walk_idle = self.poll_min;
                    self.ended[Look::Waiting as usize] = false;
                }
                let pause = if more { Duration::ZERO } else { self.walk_idle };
                self.walk_at = self.walk_at.min(now + pause);
                if !found {
                    self.walk_idle = (self.walk_idle * 2).min(self.poll_max);
                }
            }
            Look::Waiting => {
                if found || more {
                    self.waiting_idle = self.poll_max;
                    self.waiting_at = now;
                    self.ended[Look::Walk as usize] = false;
                } else {
                    self.waiting_at = self.waiting_at.min(now + self.waiting_idle);
                    self.waiting_idle = (self.waiting_idle * 2).min(self.poll_max * WAITING_IDLE_FACTOR);
                }
            }
        }
    }

    /// A look failed: later.
    pub(super) fn postpone(&mut self, pause: Duration) {
        let next = Instant::now() + pause;
        self.walk_at = next;
        self.waiting_at = next;
    }

    /// What has not been looked at with nothing in flight since something was found.
    pub(super) fn not_ended(&self) -> Option<Look> {
        [Look::Walk, Look::Waiting]
            .into_iter()
            .find(|look| !self.ended[*look as usize])
    }

    /// Whether there is nothing to publish now, as far as is known.
    pub(super) fn has_ended(&self) -> bool {
        self.ended == [true; 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intake() -> Intake {
        Intake::new(&RelayConfig::default())
    }

    #[tokio::test(start_paused = true)]
    async fn idle_polls_become_rarer_down_to_their_bounds() {
        let mut intake = intake();
        let (mut walks, mut waitings) = (0, 0);
        let end = Instant::now() + Duration::from_secs(100);
        while Instant::now() < end {
            while let Some(look) = intake.due(false) {
                intake.begin(look);
                intake.end(look, false, false, true);
                match look {
                    Look::Walk => walks += 1,
                    Look::Waiting => waitings += 1,
                }
            }
            tokio::time::sleep_until(intake.next_at()).await;
        }
        assert!((100..=110).contains(&walks), "{walks}");
        assert!((20..=25).contains(&waitings), "{waitings}");
        assert!(intake.has_ended());
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_during_a_fetch_is_not_missed() {
        let mut intake = intake();
        intake.waiting_at += Duration::from_secs(60);
        intake.begin(Look::Walk);
        assert_eq!(intake.due(false), None);
        intake.wake();
        intake.end(Look::Walk, false, false, true);
        assert_eq!(intake.due(false), Some(Look::Walk));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_back_off_is_looked_for() {
        let mut intake = intake();
        for look in [Look::Waiting, Look::Walk] {
            intake.begin(look);
            intake.end(look, false, false, true);
        }
        intake.block(Duration::from_millis(10));
        assert_eq!(intake.next_at(), Instant::now() + Duration::from_millis(10));
    }

    /// When wake-ups fail, messages are found by polling, and the metric shows it.
    #[cfg(feature = "metrics")]
    #[tokio::test(start_paused = true)]
    async fn what_found_the_messages_is_counted() {
        let recorder = metrics_util::debugging::DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, || {
            let mut intake = intake();
            for woken in [true, false, false] {
                if woken {
                    intake.wake();
                }
                intake.begin(Look::Walk);
                intake.end(Look::Walk, true, false, true);
            }
        });
        let mut found: Vec<String> = snapshotter
            .snapshot()
            .into_vec()
            .into_iter()
            .map(|(key, _, _, value)| {
                let by = key.key().labels().next().map(|label| label.value().to_owned());
                format!("{} {value:?}", by.unwrap_or_default())
            })
            .collect();
        found.sort();
        assert_eq!(found, ["poll Counter(2)", "wake Counter(1)"]);
    }
}
