//! Which jobs of handlers with limits may begin.
//!
//! Invariants: a job that waits for a limit takes no slot; jobs of one handler begin in the order in which they came; few wait here, and the others wait in their
//! lanes until about the time at which they could run. Not here: lanes ([`super::lanes`]) and slots ([`super::slots`]).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::slots::MEAN_WEIGHT;
use crate::handler::HandlerLimits;

/// Most jobs of a handler that wait here.
const WAITING_MAX: usize = 32;
/// After a pause, what may begin at once is worth this time: timers are no more exact.
const BURST: Duration = Duration::from_millis(50);
/// The time of a run in seconds, as long as none has ended.
const MEAN_AT_FIRST: f64 = 0.1;
/// Shortest wait in a lane.
const LATER_MIN: Duration = Duration::from_millis(20);
/// Longest wait in a lane: estimates may be wrong.
const LATER_MAX: Duration = Duration::from_secs(60);

/// The limited handlers of a consumer, each with its jobs `J` that wait.
#[derive(Debug)]
pub(super) struct Limits<J> {
    handlers: HashMap<&'static str, Limited<J>>,
    waiting_max: usize,
}

#[derive(Debug)]
struct Limited<J> {
    limits: HandlerLimits,
    running: u32,
    /// When the next message may begin, as far as the rate says.
    next_at: Instant,
    waiting: VecDeque<(J, u32)>,
    /// Until when the last job waits that found no place here.
    later: Instant,
    /// Mean time of a run, in seconds.
    mean: f64,
}

/// What may be done with a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission<J> {
    /// It may begin.
    Begin(J),
    /// It waits here.
    Waits,
    /// It is to come again at this time.
    Later(J, Instant),
}

impl<J> Limits<J> {
    /// `in_flight_max`: most deliveries that may run or are about to.
    pub(super) fn new(
        limits: impl IntoIterator<Item = (&'static str, HandlerLimits)>,
        in_flight_max: usize,
    ) -> Self {
        let now = Instant::now();
        let limited = |limits| Limited {
            limits,
            running: 0,
            next_at: now,
            waiting: VecDeque::new(),
            later: now,
            mean: MEAN_AT_FIRST,
        };
        let handlers = limits.into_iter();
        Self {
            handlers: handlers
                .map(|(handler, limits)| (handler, limited(limits)))
                .collect(),
            waiting_max: (in_flight_max / 2).clamp(1, WAITING_MAX),
        }
    }

    pub(super) fn is_limited(&self, handler: &str) -> bool {
        !self.handlers.is_empty() && self.handlers.contains_key(handler)
    }

    /// A job of a handler wants to begin.
    pub(super) fn admit(&mut self, handler: &str, job: J, messages: usize, now: Instant) -> Admission<J> {
        let waiting_max = self.waiting_max;
        let Some(limited) = self.handlers.get_mut(handler) else {
            return Admission::Begin(job);
        };
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        if limited.waiting.is_empty() && limited.may_begin(now) {
            limited.begin(messages, now);
            return Admission::Begin(job);
        }
        if limited.waiting.len() < waiting_max {
            limited.waiting.push_back((job, messages));
            return Admission::Waits;
        }
        Admission::Later(job, limited.later(messages, now))
    }

    /// A job that waited and may begin now.
    pub(super) fn next(&mut self, now: Instant) -> Option<J> {
        let limited = self
            .handlers
            .values_mut()
            .find(|limited| !limited.waiting.is_empty() && limited.may_begin(now))?;
        let (job, messages) = limited.waiting.pop_front()?;
        limited.begin(messages, now);
        Some(job)
    }

    /// A job of a handler has ended.
    pub(super) fn ended(&mut self, handler: &str, took: Duration) {
        if let Some(limited) = self.handlers.get_mut(handler) {
            limited.running -= 1;
            limited.mean += MEAN_WEIGHT * (took.as_secs_f64() - limited.mean);
        }
    }

    /// When [`Self::next`] has something to begin, if no job ends before.
    pub(super) fn due(&self) -> Option<Instant> {
        let waits_for_time = |limited: &&Limited<J>| !limited.waiting.is_empty() && limited.has_room();
        let limited = self.handlers.values().filter(waits_for_time);
        limited.map(|limited| limited.next_at).min()
    }

    /// Number of jobs that wait here.
    pub(super) fn waiting(&self) -> usize {
        self.handlers.values().map(|limited| limited.waiting.len()).sum()
    }

    /// Takes all jobs that wait here.
    pub(super) fn drain(&mut self) -> Vec<J> {
        let waiting = self
            .handlers
            .values_mut()
            .flat_map(|limited| limited.waiting.drain(..));
        waiting.map(|(job, _)| job).collect()
    }
}

impl<J> Limited<J> {
    fn has_room(&self) -> bool {
        self.limits.concurrency.is_none_or(|runs| self.running < runs)
    }

    fn may_begin(&self, now: Instant) -> bool {
        self.has_room() && self.next_at <= now
    }

    fn begin(&mut self, messages: u32, now: Instant) {
        self.running += 1;
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.next_at = self.next_at.max(earliest) + self.limits.interval() * messages;
    }

    /// About when a job that finds no place here can begin: each a little after the one before it, so that they do not all come at once. Rather too early: it
    /// costs a look, and a handler that waits for messages costs time.
    fn later(&mut self, messages: u32, now: Instant) -> Instant {
        let runs = f64::from(self.limits.concurrency.unwrap_or(1));
        let each = Duration::from_secs_f64(self.mean / runs / 2.0).max(self.limits.interval() * messages);
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let first = now + (each * waiting).min(LATER_MAX);
        self.later = (self.later.max(first) + each).clamp(now + LATER_MIN, now + LATER_MAX);
        self.later
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep_until};

    use super::*;

    fn limits(of: HandlerLimits) -> Limits<u32> {
        Limits::new([("limited", of)], 1_000)
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_jobs_of_a_handler_run_than_its_limit() {
        let mut limits = limits(HandlerLimits::new().concurrency(2));
        let now = Instant::now();
        let admitted: Vec<_> = (1..=4).map(|job| limits.admit("limited", job, 1, now)).collect();
        let expected = [
            Admission::Begin(1),
            Admission::Begin(2),
            Admission::Waits,
            Admission::Waits,
        ];
        assert_eq!(admitted, expected);
        assert_eq!(limits.admit("another", 5, 1, now), Admission::Begin(5));
        assert_eq!((limits.next(now), limits.due()), (None, None));
        limits.ended("limited", Duration::from_secs(1));
        assert_eq!((limits.next(now), limits.next(now)), (Some(3), None));
        limits.ended("limited", Duration::from_secs(1));
        // It came later, so it waits behind the one that waits.
        assert_eq!(limits.admit("limited", 6, 1, now), Admission::Waits);
        assert_eq!(limits.next(now), Some(4));
        assert_eq!(limits.drain(), [6]);
    }

    /// However long it was idle, and however many messages a batch has.
    #[tokio::test(start_paused = true)]
    async fn messages_of_a_handler_begin_at_its_rate() {
        let mut limits = limits(HandlerLimits::new().rate(100, Duration::from_secs(1)));
        advance(Duration::from_secs(3600)).await;
        let began_at = Instant::now();
        let (mut begun, mut job) = (0, 0);
        while began_at.elapsed() < Duration::from_secs(10) {
            let now = Instant::now();
            // Every third is a batch of five.
            while limits.waiting() < 3 {
                job += 1;
                let messages = if job % 3 == 0 { 5 } else { 1 };
                if limits.admit("limited", job, messages, now) != Admission::Waits {
                    begun += messages;
                    limits.ended("limited", Duration::ZERO);
                }
            }
            while let Some(job) = limits.next(now) {
                begun += if job % 3 == 0 { 5 } else { 1 };
                limits.ended("limited", Duration::ZERO);
            }
            sleep_until(limits.due().unwrap()).await;
        }
        assert!((990..=1_015).contains(&begun), "{begun}");
    }

    /// They come one after the other, and none is forgotten for long.
    #[tokio::test(start_paused = true)]
    async fn what_finds_no_place_comes_again_about_when_it_can_run() {
        let mut limits = limits(HandlerLimits::new().rate(10, Duration::from_secs(1)));
        let now = Instant::now();
        for job in 0..=32 {
            assert!(!matches!(
                limits.admit("limited", job, 1, now),
                Admission::Later(..)
            ));
        }
        let mut before = now + Duration::from_secs(3);
        for job in 100..2_000 {
            let Admission::Later(back, at) = limits.admit("limited", job, 1, now) else {
                panic!("job {job} found a place");
            };
            assert_eq!(back, job);
            assert!(at >= before && at <= now + LATER_MAX, "{:?}", at - now);
            before = at;
        }
    }
}
