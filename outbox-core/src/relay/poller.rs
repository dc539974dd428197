//! Decides which query is due: for pending or for waiting messages.
//!
//! Invariants: idle polls become rarer, up to the configured maximum interval, which is the latency
//! after a lost wake-up. Vain wake-ups, such as commits to other outboxes, cause no more polls than
//! `poll_min` allows.

use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use super::config::RelayConfig;
use crate::telemetry;

const WAITING_IDLE_FACTOR: u32 = 5;

const VAIN_MAX: u32 = 8;

#[derive(Debug)]
pub(super) struct Poller {
    poll_min: Duration,
    poll_max: Duration,
    pending_at: Instant,
    pending_idle: Duration,
    waiting_at: Instant,
    waiting_idle: Duration,
    woken: bool,
    by_wake: bool,
    vain: u32,
    polled_at: Instant,
    /// Indexed by [`Query`]: whether the last poll found no rows, and began without messages in
    /// flight.
    ended: [bool; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Query {
    Pending,
    Waiting,
}

impl Poller {
    pub(super) fn new(config: &RelayConfig) -> Self {
        let now = Instant::now();
        let poll_min = config.poll_min.min(config.poll_max);
        Self {
            poll_min,
            poll_max: config.poll_max,
            pending_at: now,
            pending_idle: poll_min,
            waiting_at: now,
            waiting_idle: config.poll_max,
            woken: false,
            by_wake: false,
            vain: 0,
            polled_at: now,
            ended: [false; 2],
        }
    }

    pub(super) fn due(&self, pending_first: bool) -> Option<Query> {
        let now = Instant::now();
        match (self.pending_at <= now, self.waiting_at <= now) {
            (true, true) if pending_first || self.pending_at < self.waiting_at => Some(Query::Pending),
            (_, true) => Some(Query::Waiting),
            (true, false) => Some(Query::Pending),
            (false, false) => None,
        }
    }

    pub(super) fn next_at(&self) -> Instant {
        self.pending_at.min(self.waiting_at)
    }

    pub(super) fn wake(&mut self) {
        let at = if self.vain < VAIN_MAX {
            Instant::now()
        } else {
            self.polled_at + self.poll_min
        };
        self.pending_at = self.pending_at.min(at);
        if self.vain < VAIN_MAX {
            self.pending_idle = self.poll_min;
        }
        self.woken = true;
    }

    pub(super) fn restart(&mut self) {
        let now = Instant::now();
        self.pending_at = now;
        self.waiting_at = now;
        self.pending_idle = self.poll_min;
        self.waiting_idle = self.poll_max;
        self.ended = [false; 2];
    }

    pub(super) fn block(&mut self, delay: Duration) {
        self.waiting_at = self.waiting_at.min(Instant::now() + delay);
        self.waiting_idle = self.poll_max;
    }

    pub(super) fn begin(&mut self, query: Query) {
        let now = Instant::now();
        match query {
            Query::Pending => {
                self.pending_at = now + self.poll_max;
                self.polled_at = now;
                self.by_wake = mem::take(&mut self.woken);
            }
            Query::Waiting => self.waiting_at = now + self.poll_max * WAITING_IDLE_FACTOR,
        }
    }

    pub(super) fn end(&mut self, query: Query, found: bool, more: bool, alone: bool) {
        let now = Instant::now();
        self.ended[query as usize] = !found && !more && alone;
        match query {
            Query::Pending => {
                if found {
                    telemetry::found(self.by_wake);
                    self.vain = 0;
                } else if self.by_wake {
                    self.vain = self.vain.saturating_add(1);
                }
                if found || more {
                    self.pending_idle = self.poll_min;
                    self.ended[Query::Waiting as usize] = false;
                }
                let pause = if more { Duration::ZERO } else { self.pending_idle };
                self.pending_at = self.pending_at.min(now + pause);
                if !found {
                    self.pending_idle = (self.pending_idle * 2).min(self.poll_max);
                }
            }
            Query::Waiting => {
                // A pending copy of a replay holds back the waiting messages of its aggregate, so
                // the last query of a drain is for pending messages.
                self.ended[Query::Pending as usize] = false;
                if found || more {
                    self.waiting_idle = self.poll_max;
                    self.waiting_at = now;
                } else {
                    self.waiting_at = self.waiting_at.min(now + self.waiting_idle);
                    self.waiting_idle = (self.waiting_idle * 2).min(self.poll_max * WAITING_IDLE_FACTOR);
                }
            }
        }
    }

    pub(super) fn postpone(&mut self, pause: Duration) {
        let next = Instant::now() + pause;
        self.pending_at = next;
        self.waiting_at = next;
    }

    pub(super) fn not_ended(&self) -> Option<Query> {
        [Query::Waiting, Query::Pending]
            .into_iter()
            .find(|query| !self.ended[*query as usize])
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended == [true; 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poller() -> Poller {
        Poller::new(&RelayConfig::default())
    }

    #[tokio::test(start_paused = true)]
    async fn idle_polls_become_rarer_down_to_their_bounds() {
        let mut poller = poller();
        let (mut pending, mut waiting) = (0, 0);
        let end = Instant::now() + Duration::from_secs(100);
        while Instant::now() < end {
            while let Some(query) = poller.due(false) {
                poller.begin(query);
                poller.end(query, false, false, true);
                match query {
                    Query::Pending => pending += 1,
                    Query::Waiting => waiting += 1,
                }
            }
            tokio::time::sleep_until(poller.next_at()).await;
        }
        assert!((100..=110).contains(&pending), "{pending}");
        assert!((20..=25).contains(&waiting), "{waiting}");
        assert!(poller.has_ended());
    }

    #[tokio::test(start_paused = true)]
    async fn last_query_of_a_drain_is_for_pending_messages() {
        let mut poller = poller();
        for query in [Query::Pending, Query::Waiting] {
            poller.end(query, false, false, true);
            assert_eq!(poller.not_ended().is_some(), !poller.has_ended());
        }
        assert_eq!(poller.not_ended(), Some(Query::Pending));
        poller.end(Query::Pending, false, false, true);
        assert!(poller.has_ended());
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_during_a_fetch_is_not_missed() {
        let mut poller = poller();
        poller.waiting_at += Duration::from_secs(60);
        poller.begin(Query::Pending);
        assert_eq!(poller.due(false), None);
        poller.wake();
        poller.end(Query::Pending, false, false, true);
        assert_eq!(poller.due(false), Some(Query::Pending));
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_a_back_off_is_polled() {
        let mut poller = poller();
        for query in [Query::Waiting, Query::Pending] {
            poller.begin(query);
            poller.end(query, false, false, true);
        }
        poller.block(Duration::from_millis(10));
        assert_eq!(poller.next_at(), Instant::now() + Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn vain_wake_ups_cause_few_polls() {
        let mut poller = poller();
        poller.waiting_at += Duration::from_secs(3600);
        let mut polls = 0;
        for _ in 0..10_000 {
            poller.wake();
            if poller.due(false).is_some() {
                poller.begin(Query::Pending);
                poller.end(Query::Pending, false, false, true);
                polls += 1;
            }
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let most = 10_000 / poller.poll_min.as_millis() + u128::from(VAIN_MAX);
        assert!(polls <= most, "{polls}");
        assert!(polls >= most / 2, "none is lost: {polls}");
        tokio::time::sleep_until(poller.next_at()).await;
        poller.begin(Query::Pending);
        poller.end(Query::Pending, true, false, true);
        poller.wake();
        assert_eq!(
            poller.due(false),
            Some(Query::Pending),
            "a useful wake-up counts at once"
        );
    }
}
