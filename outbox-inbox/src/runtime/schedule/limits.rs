//! Which jobs of handlers with limits may begin.
//!
//! Invariants: a job that waits for a limit takes no slot; jobs of one handler and kind begin in
//! the order in which they came, and handlers take turns; few jobs wait here, fewer of them
//! suspects, and the other jobs wait in their lanes until about the time at which they could run.
//! Not here: lanes ([`crate::runtime::schedule::lanes`]), slots and what a suspect is
//! ([`crate::runtime::schedule::slots`]).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::handler::HandlerLimits;
use crate::runtime::schedule::slots::MEAN_WEIGHT;

/// Most jobs of a handler that wait here.
const WAITING_MAX: usize = 32;
/// One place in so many is for suspects, so that they leave room for other jobs.
const SUSPECTS: usize = 8;
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
pub(crate) struct Limits<J> {
    handlers: Vec<Limited<J>>,
    /// Where each stands.
    places: HashMap<&'static str, usize>,
    waiting_max: usize,
    /// The handler whose turn is next.
    turn: usize,
    /// The time of the last look for what may begin.
    looked_at: Instant,
}

#[derive(Debug)]
struct Limited<J> {
    limits: HandlerLimits,
    running: u32,
    /// When the next message may begin, as far as the rate says.
    next_at: Instant,
    waiting: VecDeque<(J, u32)>,
    /// Until when the last job waits that found no place here; of suspects the second one.
    later: [Instant; 2],
    /// Mean time of a run, in seconds.
    mean: f64,
}

/// What may be done with a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission<J> {
    /// It may begin.
    Begin(J),
    /// It waits here.
    Waits,
    /// It is to come again at this time.
    Later(J, Instant),
}

impl<J> Limits<J> {
    /// `in_flight_max`: most deliveries that may run or are about to.
    pub(crate) fn new(
        limits: impl IntoIterator<Item = (&'static str, HandlerLimits)>,
        in_flight_max: usize,
    ) -> Self {
        let now = Instant::now();
        let limited = |limits| Limited {
            limits,
            running: 0,
            next_at: now,
            waiting: VecDeque::new(),
            later: [now; 2],
            mean: MEAN_AT_FIRST,
        };
        let (mut handlers, mut places) = (Vec::new(), HashMap::new());
        for (handler, limits) in limits {
            places.insert(handler, handlers.len());
            handlers.push(limited(limits));
        }
        Self {
            handlers,
            places,
            waiting_max: (in_flight_max / 2).clamp(1, WAITING_MAX),
            turn: 0,
            looked_at: now,
        }
    }

    pub(crate) fn is_limited(&self, handler: &str) -> bool {
        !self.handlers.is_empty() && self.places.contains_key(handler)
    }

    fn of(&mut self, handler: &str) -> Option<&mut Limited<J>> {
        self.handlers.get_mut(*self.places.get(handler)?)
    }

    /// A job of a handler wants to begin.
    pub(crate) fn admit(
        &mut self,
        handler: &str,
        job: J,
        messages: usize,
        is_suspect: impl Fn(&J) -> bool,
        now: Instant,
    ) -> Admission<J> {
        let waiting_max = self.waiting_max;
        let Some(limited) = self.of(handler) else {
            return Admission::Begin(job);
        };
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        if limited.waiting.is_empty() && limited.may_begin(now) {
            limited.begin(messages, now);
            return Admission::Begin(job);
        }
        let suspicious = is_suspect(&job);
        let is_crowded = suspicious && {
            let suspects = limited.waiting.iter().filter(|(job, _)| is_suspect(job));
            suspects.count() >= (waiting_max / SUSPECTS).max(1)
        };
        if limited.waiting.len() < waiting_max && !is_crowded {
            limited.waiting.push_back((job, messages));
            return Admission::Waits;
        }
        Admission::Later(job, limited.later(messages, suspicious, now))
    }

    /// A job that waited and may begin now, by its limits and by `may`.
    pub(crate) fn next(&mut self, now: Instant, may: impl Fn(&J) -> bool) -> Option<J> {
        self.looked_at = now;
        for step in 0..self.handlers.len() {
            let at = (self.turn + step) % self.handlers.len();
            let limited = &mut self.handlers[at];
            let Some(place) = limited.next(now, &may) else {
                continue;
            };
            let (job, messages) = limited.waiting.remove(place)?;
            limited.begin(messages, now);
            self.turn = at + 1;
            return Some(job);
        }
        None
    }

    /// Whether a job that waited may begin now, by its limits and by `may`.
    pub(crate) fn has_next(&self, now: Instant, may: impl Fn(&J) -> bool) -> bool {
        self.handlers
            .iter()
            .any(|limited| limited.next(now, &may).is_some())
    }

    /// A job of a handler has ended.
    pub(crate) fn ended(&mut self, handler: &str, took: Duration) {
        if let Some(limited) = self.of(handler) {
            limited.running -= 1;
            limited.mean += MEAN_WEIGHT * (took.as_secs_f64() - limited.mean);
        }
    }

    /// When [`Self::next`] may have more to begin than at its last call, if no job ends before.
    pub(crate) fn due(&self) -> Option<Instant> {
        let waits_for_time = |limited: &&Limited<J>| {
            !limited.waiting.is_empty() && limited.has_room() && limited.next_at > self.looked_at
        };
        let limited = self.handlers.iter().filter(waits_for_time);
        limited.map(|limited| limited.next_at).min()
    }

    /// Number of jobs that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.handlers.iter().map(|limited| limited.waiting.len()).sum()
    }

    /// Takes all jobs that wait here.
    pub(crate) fn drain(&mut self) -> Vec<J> {
        let waiting = self
            .handlers
            .iter_mut()
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

    /// The place of the first job that may begin.
    fn next(&self, now: Instant, may: impl Fn(&J) -> bool) -> Option<usize> {
        let mut jobs = self.waiting.iter();
        self.may_begin(now).then(|| jobs.position(|(job, _)| may(job)))?
    }

    fn begin(&mut self, messages: u32, now: Instant) {
        self.running += 1;
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.next_at = self.next_at.max(earliest) + self.limits.interval() * messages;
    }

    /// About when a job that finds no place here can begin: each a little after the one before it,
    /// so that they do not all come at once. Rather too early: it costs a look, and a handler that
    /// waits for messages costs time.
    fn later(&mut self, messages: u32, suspicious: bool, now: Instant) -> Instant {
        let runs = f64::from(self.limits.concurrency.unwrap_or(1));
        let each = Duration::from_secs_f64(self.mean / runs / 2.0).max(self.limits.interval() * messages);
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let first = now + (each * waiting).min(LATER_MAX);
        let last = &mut self.later[usize::from(suspicious)];
        *last = ((*last).max(first) + each).clamp(now + LATER_MIN, now + LATER_MAX);
        *last
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
        let admitted: Vec<_> = (1..=4)
            .map(|job| limits.admit("limited", job, 1, |_| false, now))
            .collect();
        let expected = [
            Admission::Begin(1),
            Admission::Begin(2),
            Admission::Waits,
            Admission::Waits,
        ];
        assert_eq!(admitted, expected);
        assert_eq!(limits.admit("another", 5, 1, |_| false, now), Admission::Begin(5));
        assert_eq!((limits.next(now, |_| true), limits.due()), (None, None));
        limits.ended("limited", Duration::from_secs(1));
        assert_eq!(
            (limits.next(now, |_| true), limits.next(now, |_| true)),
            (Some(3), None)
        );
        limits.ended("limited", Duration::from_secs(1));
        // It came later, so it waits behind the one that waits.
        assert_eq!(limits.admit("limited", 6, 1, |_| false, now), Admission::Waits);
        assert_eq!(limits.next(now, |_| true), Some(4));
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
                if limits.admit("limited", job, messages, |_| false, now) != Admission::Waits {
                    begun += messages;
                    limits.ended("limited", Duration::ZERO);
                }
            }
            while let Some(job) = limits.next(now, |_| true) {
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
                limits.admit("limited", job, 1, |_| false, now),
                Admission::Later(..)
            ));
        }
        let mut before = now + Duration::from_secs(3);
        for job in 100..2_000 {
            let Admission::Later(back, at) = limits.admit("limited", job, 1, |_| false, now) else {
                panic!("job {job} found a place");
            };
            assert_eq!(back, job);
            assert!(at >= before && at <= now + LATER_MAX, "{:?}", at - now);
            before = at;
        }
    }

    /// Suspects are jobs from 100 on. They may not begin, and others pass them.
    #[tokio::test(start_paused = true)]
    async fn suspects_take_few_places_and_keep_no_others_back() {
        let (mut limits, now) = (limits(HandlerLimits::new().concurrency(1)), Instant::now());
        let is_suspect = |job: &u32| *job >= 100;
        let mut admit = |job| limits.admit("limited", job, 1, is_suspect, now);
        assert_eq!(admit(1), Admission::Begin(1));
        for suspect in 100..100 + 4 {
            assert_eq!(admit(suspect), Admission::Waits);
        }
        assert!(matches!(admit(104), Admission::Later(104, _)));
        assert_eq!(admit(2), Admission::Waits);
        limits.ended("limited", Duration::ZERO);
        assert!(limits.has_next(now, is_suspect));
        assert_eq!(limits.next(now, |job| !is_suspect(job)), Some(2));
        limits.ended("limited", Duration::ZERO);
        assert_eq!(limits.next(now, |job| !is_suspect(job)), None);
        // Nothing is due, because they do not wait for a time.
        assert_eq!((limits.due(), limits.waiting()), (None, 4));
        assert_eq!(limits.next(now, |_| true), Some(100));
    }

    #[tokio::test(start_paused = true)]
    async fn handlers_take_turns() {
        let one = HandlerLimits::new().concurrency(1);
        let (mut limits, now) = (Limits::new([("a", one), ("b", one)], 1_000), Instant::now());
        for job in 0..4 {
            limits.admit("a", ("a", job), 1, |_| false, now);
            limits.admit("b", ("b", job), 1, |_| false, now);
        }
        let mut begun = Vec::new();
        for _ in 0..4 {
            limits.ended("a", Duration::ZERO);
            limits.ended("b", Duration::ZERO);
            let job = limits.next(now, |_| true).unwrap();
            begun.push(job.0);
            // The other handler's job, which the test does not begin, ran on.
            limits.of(if job.0 == "a" { "b" } else { "a" }).unwrap().running += 1;
        }
        assert_eq!(begun, ["a", "b", "a", "b"]);
    }
}
