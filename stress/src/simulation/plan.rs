//! The plan of a world: sizes, settings and frequency of faults.
//!
//! Invariant: the plan is drawn from the seed before the world starts. Each kind of fault is absent
//! from some worlds, so that it cannot hide a mistake everywhere.

use std::num::NonZeroU32;
use std::time::Duration;

use fastrand::Rng;
use outbox_core::publisher::FailureClass;
use outbox_core::relay::{EventPolicy, PoisonPolicy, RelayConfig, Retention};
use outbox_core::retry::Backoff;
use outbox_log::LogConfig;

use super::broker::refusal;
use super::pauses::PausePlan;

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) relays: u32,
    pub(super) writers: u32,
    pub(super) aggregates: u32,
    pub(super) transactions: u32,
    pub(super) events_max: u32,
    pub(super) chaos: Duration,
    pub(super) lease_ttl: Duration,
    pub(super) store_timeout: Duration,
    pub(super) backoff: Backoff,
    pub(super) policy: EventPolicy,
    pub(super) retention: Retention,
    /// Commits wake no relay, as if the writers were another process.
    pub(super) writers_are_remote: bool,
    pub(super) store: StorePlan,
    pub(super) broker: BrokerPlan,
    pub(super) writer: WriterPlan,
    pub(super) crashes: CrashPlan,
    pub(super) faults_every: Option<Duration>,
    pub(super) cut_off: Option<(Duration, Cut)>,
    pub(super) forgets: bool,
    pub(super) loses: bool,
    pub(super) reconcile_every: Option<Duration>,
    pub(super) drains: f64,
    pub(super) operator_every: Option<Duration>,
    pub(super) skips_in_the_end: bool,
    pub(super) clocks_every: Option<Duration>,
    pub(super) log: Option<LogPlan>,
    pub(super) pauses: Option<PausePlan>,
    pub(super) row_ids_set_back: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(super) struct LogPlan {
    pub(super) config: LogConfig,
    pub(super) faults_every: Option<Duration>,
    pub(super) is_lost: bool,
    /// Commits may be in the log before they are visible in the table.
    pub(super) hides: bool,
}

const LOGGED_EVERY: u64 = 4;

impl LogPlan {
    /// Draws the log from separate random numbers, so that worlds without a log do not change.
    fn draw(seed: u64) -> Option<Self> {
        if !seed.is_multiple_of(LOGGED_EVERY) {
            return None;
        }
        let mut rng = Rng::with_seed(seed.wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03));
        let rng = &mut rng;
        let config = LogConfig::default()
            .checkpoint_every(ms(rng, 10..=800))
            .window(if rng.bool() { 10_000 } else { 1 << rng.usize(0..=6) })
            .window_bytes(if chance(rng, 0.2) { 200 } else { 1 << 20 })
            .retained_max(if chance(rng, 0.3) {
                rng.u64(10..=500)
            } else {
                1 << 30
            });
        Some(Self {
            config,
            faults_every: chance(rng, 0.8).then(|| ms(rng, 50..=800)),
            is_lost: chance(rng, 0.3),
            hides: chance(rng, 0.4),
        })
    }
}

#[derive(Debug, Clone)]
pub(super) struct StorePlan {
    pub(super) latency_max: Duration,
    pub(super) fails: f64,
    pub(super) loses_answer: f64,
    pub(super) is_slow: f64,
    pub(super) never_answers: f64,
}

#[derive(Debug, Clone)]
pub(super) struct BrokerPlan {
    pub(super) latency_max: Duration,
    pub(super) timeout: Duration,
    pub(super) loses_ack: f64,
    pub(super) is_late: f64,
    pub(super) ghosts: f64,
    pub(super) vanishes: f64,
    pub(super) refuses: f64,
}

#[derive(Debug, Clone)]
pub(super) struct WriterPlan {
    pub(super) rolls_back: f64,
    pub(super) delayed: f64,
    pub(super) unsequenced: f64,
    pub(super) poison: f64,
    pub(super) unknown: f64,
    /// Probability that the store rejects settlements of a message.
    pub(super) unrecordable: f64,
    /// Maximum difference between a writer's clock and the store's clock.
    pub(super) skew_max: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Broker,
    /// The broker answers probes but no publishes.
    Messages,
    /// The broker rejects publishes and answers probes.
    Refusals(FailureClass),
    Store,
    Call(&'static str),
}

impl Cut {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        match rng.u8(0..6) {
            0 => Self::Broker,
            1 => Self::Messages,
            2 => Self::Refusals(refusal(rng)),
            3 => Self::Store,
            4 => Self::Call("fetch"),
            _ => Self::Call("settle"),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct CrashPlan {
    pub(super) crash: f64,
    pub(super) pause: f64,
    pub(super) stop: f64,
}

pub(super) fn ms(rng: &mut Rng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

pub(super) fn latency(rng: &mut Rng, max: Duration) -> Duration {
    match rng.bool() {
        true => Duration::ZERO,
        false => Duration::from_micros(rng.u64(0..=max.as_micros() as u64)),
    }
}

pub(super) fn chance(rng: &mut Rng, probability: f64) -> bool {
    probability > 0.0 && rng.f64() < probability
}

struct Troubles {
    crashes: CrashPlan,
    store: StorePlan,
    broker: BrokerPlan,
    writer: WriterPlan,
    faults_every: Option<Duration>,
    operator_every: Option<Duration>,
    is_cut_off: bool,
    forgets: bool,
    loses: bool,
    reconcile_every: Option<Duration>,
    drains: f64,
}

impl Troubles {
    // The order of draws defines the world of a seed. Add new draws at the end.
    fn draw(rng: &mut Rng, is_fair: bool) -> Self {
        let mut bad = |likely: f64, max: f64| {
            let is_on = chance(rng, likely) && !is_fair;
            if is_on { rng.f64() * max } else { 0.0 }
        };
        Self {
            crashes: CrashPlan {
                crash: bad(0.7, 1.0),
                pause: bad(0.5, 1.0),
                stop: bad(0.5, 0.7),
            },
            store: StorePlan {
                latency_max: Duration::ZERO,
                fails: bad(0.4, 0.08),
                loses_answer: bad(0.4, 0.08),
                is_slow: bad(0.3, 0.03),
                never_answers: bad(0.3, 0.03),
            },
            broker: BrokerPlan {
                latency_max: Duration::ZERO,
                timeout: Duration::ZERO,
                loses_ack: bad(0.4, 0.15),
                is_late: bad(0.3, 0.1),
                ghosts: bad(0.4, 0.15),
                vanishes: bad(0.3, 0.1),
                refuses: bad(0.3, 0.2),
            },
            writer: WriterPlan {
                rolls_back: bad(0.5, 0.3),
                delayed: bad(0.4, 0.3),
                unsequenced: bad(0.3, 0.4),
                poison: bad(0.5, 0.15),
                unknown: 0.0,
                unrecordable: 0.0,
                skew_max: Duration::ZERO,
            },
            faults_every: (bad(0.6, 1.0) > 0.0).then(|| Duration::from_millis(700)),
            operator_every: (bad(0.5, 1.0) > 0.0).then(|| Duration::from_millis(300)),
            is_cut_off: bad(0.4, 1.0) > 0.0,
            forgets: bad(0.2, 1.0) > 0.0,
            loses: bad(0.3, 1.0) > 0.0,
            reconcile_every: (bad(0.3, 1.0) > 0.0).then(|| Duration::from_millis(500)),
            drains: bad(0.2, 1.0),
        }
    }
}

fn draw_latency(rng: &mut Rng) -> Duration {
    Duration::from_micros(1 << rng.u64(0..=13))
}

fn draw_policy(rng: &mut Rng) -> EventPolicy {
    EventPolicy::default()
        .attempts_max(rng.u32(1..=4))
        .on_poison(if rng.bool() {
            PoisonPolicy::HaltAggregate
        } else {
            PoisonPolicy::Continue
        })
        .backoff(Backoff {
            min: ms(rng, 5..=50),
            max: ms(rng, 50..=500),
        })
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let is_fair = chance(rng, 0.05);
        let is_crowded = chance(rng, 0.01);
        let troubles = Troubles::draw(rng, is_fair);
        let retention = match rng.u8(0..5) {
            0 | 1 => Retention::Keep,
            2 => Retention::KeepFor(ms(rng, 100..=3000)),
            // A deleted row could not be published again after the stream lost its message.
            _ if troubles.loses => Retention::Keep,
            _ => Retention::Delete,
        };
        let policy = draw_policy(rng);
        let relays = if chance(rng, 0.1) { 1 } else { rng.u32(2..=4) };
        let chaos = ms(rng, 1000..=3000);
        let cut_off = (troubles.is_cut_off && relays > 1).then(|| (chaos.mul_f64(rng.f64()), Cut::draw(rng)));
        let mut plan = Self {
            relays,
            writers: rng.u32(1..=3),
            aggregates: if is_crowded { 2 } else { rng.u32(3..=12) },
            transactions: rng.u32(2..=8),
            events_max: if is_crowded { 150 } else { rng.u32(1..=5) },
            chaos,
            lease_ttl: ms(rng, 300..=900),
            store_timeout: ms(rng, 100..=2000),
            backoff: Backoff {
                min: ms(rng, 5..=50),
                max: ms(rng, 50..=400),
            },
            policy,
            retention,
            writers_are_remote: rng.bool(),
            store: StorePlan {
                latency_max: draw_latency(rng),
                ..troubles.store
            },
            broker: BrokerPlan {
                latency_max: draw_latency(rng),
                timeout: ms(rng, 20..=800),
                ..troubles.broker
            },
            writer: troubles.writer,
            crashes: troubles.crashes,
            faults_every: troubles.faults_every,
            cut_off,
            forgets: troubles.forgets,
            loses: troubles.loses,
            reconcile_every: troubles.reconcile_every,
            drains: troubles.drains,
            operator_every: troubles.operator_every,
            skips_in_the_end: rng.bool(),
            clocks_every: None,
            log: None,
            pauses: None,
            row_ids_set_back: None,
        };
        plan.draw_more(rng, is_fair);
        plan
    }

    /// Draws settings that were added later, so that earlier draws do not change.
    fn draw_more(&mut self, rng: &mut Rng, is_fair: bool) {
        let mut bad = |likely: f64, max: f64| {
            let is_on = chance(rng, likely) && !is_fair;
            if is_on { rng.f64() * max } else { 0.0 }
        };
        self.writer.unknown = bad(0.3, 0.3);
        self.writer.unrecordable = bad(0.2, 0.1);
        self.writer.skew_max = Duration::from_millis(bad(0.3, 500.0) as u64);
        self.clocks_every = (bad(0.3, 1.0) > 0.0).then(|| Duration::from_millis(500));
        if chance(rng, 0.005) {
            self.relays += rng.u32(1..=3);
            self.writers += rng.u32(2..=6);
            self.aggregates *= rng.u32(3..=8);
            self.transactions *= 2;
        }
    }

    pub(super) fn draw_log(&mut self, seed: u64) {
        self.log = LogPlan::draw(seed);
    }

    pub(super) fn draw_pauses(&mut self, seed: u64) {
        self.pauses = PausePlan::draw(seed);
    }

    pub(super) fn draw_row_ids(&mut self, seed: u64) {
        let mut rng = Rng::with_seed(seed.wrapping_add(3).wrapping_mul(0xa076_1d64_78bd_642f));
        self.row_ids_set_back = chance(&mut rng, 0.3).then(|| self.chaos.mul_f64(rng.f64()));
    }

    pub(super) fn config(&self, rng: &mut Rng) -> RelayConfig {
        let batch = if self.events_max > 100 {
            rng.u32(200..=500)
        } else {
            1 << rng.u32(0..=6)
        };
        let poll_max = ms(rng, 20..=300);
        RelayConfig::default()
            .lease_ttl(self.lease_ttl)
            .store_timeout(self.store_timeout)
            .batch(NonZeroU32::new(batch).unwrap_or(NonZeroU32::MIN))
            .buffer_bytes(if chance(rng, 0.2) { 200 } else { 1 << 20 })
            .window(1 << rng.usize(0..=5))
            .poll_min(ms(rng, 5..=20))
            .poll_max(poll_max)
            .backoff(self.backoff)
            .policy(self.policy.clone())
            .retention(match self.retention {
                // A relay rejects the plan's retention as too short.
                Retention::KeepFor(_) => Retention::KeepFor(Duration::from_secs(3600)),
                retention => retention,
            })
            .shutdown_timeout(ms(rng, 0..=1000))
            .seed(Some(rng.u64(..)))
    }
}
