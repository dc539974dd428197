//! Relays that crash, pause, stop and restart. A crash drops the run between two polls, and a pause
//! leaves it unpolled.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use outbox_core::StoreError;
use outbox_core::relay::{Relay, RelayConfig, RelayError, RelayReport};
use outbox_log::LogRelay;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::broker::SimPublisher;
use super::history::Life;
use super::log::SimLog;
use super::store::SimStore;
use super::world::World;
use super::{Invariant, maintenance, plan};

/// Time that [`Relay::run`] documents for a shutdown beyond its timeout.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(4);

const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Limit of polls at one instant. More polls are a busy loop.
const POLLS_PER_MOMENT: u32 = 5_000;

#[derive(Debug, Clone, Copy)]
enum Fault {
    Crash,
    Pause(Duration),
}

pub(super) struct CrashingRun<F> {
    run: Pin<Box<F>>,
    world: Arc<World>,
    life: Life,
    fault: Option<(u64, Fault)>,
    standing: Option<Pin<Box<Sleep>>>,
    moment: (Instant, u32),
}

impl<F> CrashingRun<F> {
    pub(super) fn new(run: F, world: Arc<World>, life: Life) -> Self {
        let mut crashing = Self {
            run: Box::pin(run),
            world,
            life,
            fault: None,
            standing: None,
            moment: (Instant::now(), 0),
        };
        crashing.draw();
        crashing
    }

    fn spins(&mut self) -> bool {
        let now = Instant::now();
        if self.moment.0 != now {
            self.moment = (now, 0);
        }
        self.moment.1 += 1;
        self.moment.1 > POLLS_PER_MOMENT
    }

    fn draw(&mut self) {
        let mut shared = self.world.shared();
        let (crashes, ttl) = (&self.world.plan.crashes, self.world.plan.lease_ttl);
        let rng = &mut shared.rng;
        let power = rng.u32(0..=8);
        let polls = (1 << power) + rng.u64(0..(1 << power));
        let fault = if plan::chance(rng, crashes.pause) {
            let pause = ttl.mul_f64(rng.f64() * if rng.bool() { 0.9 } else { 3.0 });
            Some(Fault::Pause(pause))
        } else if plan::chance(rng, crashes.crash) {
            Some(Fault::Crash)
        } else {
            None
        };
        self.fault = fault.map(|fault| (polls, fault));
    }
}

impl<F: Future> Future for CrashingRun<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(standing) = &mut this.standing {
            ready!(standing.as_mut().poll(cx));
            this.standing = None;
            this.world.shared().checker.resumed(this.life);
            this.draw();
        }
        if this.spins() {
            let what = format!(
                "relay run {} turns its loop without end and without waiting",
                this.life
            );
            this.world.shared().checker.violate(Invariant::Progress, what);
            return Poll::Ready(None);
        }
        match &mut this.fault {
            _ if this.world.shared().is_calm => {}
            Some((0, Fault::Crash)) => return Poll::Ready(None),
            Some((0, Fault::Pause(time))) => {
                let (paused, life) = (*time, this.life);
                let mut standing = Box::pin(sleep(*time));
                let mut shared = this.world.shared();
                shared
                    .checker
                    .history
                    .note(format!("run {life} is paused for {paused:?}"));
                drop(shared);
                if standing.as_mut().poll(cx).is_pending() {
                    this.standing = Some(standing);
                    return Poll::Pending;
                }
            }
            Some((polls, _)) => *polls -= 1,
            None => {}
        }
        this.run.as_mut().poll(cx).map(Some)
    }
}

pub(super) async fn live(world: Arc<World>, relay: u32) {
    let first = {
        let mut shared = world.shared();
        plan::ms(&mut shared.rng, 0..=300)
    };
    sleep(first).await;
    while !world.end.is_cancelled() && world.shared().checker.violation.is_none() {
        run_once(&world, relay).await;
        let pause = {
            let mut shared = world.shared();
            let max = if shared.is_calm { 50 } else { 800 };
            plan::ms(&mut shared.rng, 0..=max)
        };
        tokio::select! {
            biased;
            () = world.end.cancelled() => {}
            () = sleep(pause) => {}
        }
    }
}

enum AnyRelay {
    Table(Box<Relay<SimStore, SimPublisher>>),
    Log(Box<LogRelay<SimStore, SimLog, SimPublisher>>),
}

impl AnyRelay {
    fn new(world: &Arc<World>, life: Life, config: RelayConfig) -> Self {
        let store = SimStore {
            world: world.clone(),
            life,
        };
        let publisher = SimPublisher {
            world: world.clone(),
            life,
        };
        let machine = world.clone();
        let wall_clock = move || machine.shared().lead(life);
        if let (Some(plan), Some(log)) = (&world.plan.log, &world.log) {
            let log = SimLog::new(world, log, life);
            let relay = LogRelay::new(store, log, publisher)
                .with_config(config)
                .with_log_config(plan.config.clone())
                .with_wall_clock(wall_clock);
            return Self::Log(Box::new(relay));
        }
        let relay = Relay::new(store, publisher)
            .with_config(config)
            .with_wall_clock(wall_clock);
        Self::Table(Box::new(relay))
    }

    async fn run(&self, shutdown: CancellationToken) -> Result<RelayReport, RelayError> {
        match self {
            Self::Table(relay) => relay.run(shutdown).await,
            Self::Log(relay) => relay.run(shutdown).await,
        }
    }

    async fn drain(&self) -> Result<RelayReport, RelayError> {
        match self {
            Self::Table(relay) => relay.drain().await,
            Self::Log(relay) => relay.drain().await,
        }
    }
}

async fn run_once(world: &Arc<World>, number: u32) {
    let (life, config, drains, stop_after) = {
        let mut shared = world.shared();
        let life = shared.begin_life(number);
        let config = world.plan.config(&mut shared.rng);
        // After a drain, no relay would take over the partitions of a relay that is cut off.
        let is_needed = shared.is_calm && world.plan.cut_off.is_some();
        let drains = plan::chance(&mut shared.rng, world.plan.drains) && !is_needed;
        let stops = !shared.is_calm && plan::chance(&mut shared.rng, world.plan.crashes.stop);
        let stop_after = stops.then(|| plan::ms(&mut shared.rng, 1..=2000));
        if drains {
            let due = maintenance::due_now(world, &shared);
            shared.checker.drains(life, due);
        }
        (life, config, drains, stop_after)
    };
    let shutdown_timeout = config.shutdown_timeout;
    let relay = AnyRelay::new(world, life, config);
    let outcome = if drains {
        drain(world, life, &relay).await
    } else {
        let shutdown = CancellationToken::new();
        let mut run = CrashingRun::new(relay.run(shutdown.clone()), world.clone(), life);
        let stop = async {
            match stop_after {
                Some(time) => tokio::select! {
                    biased;
                    () = world.end.cancelled() => {}
                    () = sleep(time) => {}
                },
                None => world.end.cancelled().await,
            }
        };
        tokio::select! {
            biased;
            outcome = &mut run => outcome,
            () = stop => {
                let asked_at = Instant::now();
                shutdown.cancel();
                let outcome = (&mut run).await;
                check_shutdown(world, life, asked_at, shutdown_timeout);
                outcome
            }
        }
    };
    end(world, life, outcome, drains);
}

async fn drain(world: &Arc<World>, life: Life, relay: &AnyRelay) -> Option<Result<RelayReport, RelayError>> {
    let run = CrashingRun::new(relay.drain(), world.clone(), life);
    let outcome = timeout(DRAIN_TIMEOUT, run).await;
    let mut shared = world.shared();
    match outcome {
        Ok(outcome) => {
            // If the store rejects a settlement, a drain fails after all other messages are
            // published.
            let refused = |error: &RelayError| matches!(error, RelayError::Store(StoreError::Refused { .. }));
            if outcome
                .as_ref()
                .is_some_and(|ended| ended.as_ref().err().is_none_or(refused))
            {
                shared.checker.drained(life);
            }
            outcome
        }
        Err(_) => {
            let what = format!("relay run {life} still drains after {DRAIN_TIMEOUT:?}");
            shared.checker.violate(Invariant::Progress, what);
            None
        }
    }
}

fn check_shutdown(world: &World, life: Life, asked_at: Instant, timeout: Duration) {
    let mut shared = world.shared();
    // A paused relay cannot stop.
    let stood_still = shared.checker.stood_still_since(life, asked_at);
    if asked_at.elapsed() > timeout + SHUTDOWN_GRACE && !stood_still {
        let took = asked_at.elapsed();
        shared.checker.violate(
            Invariant::Progress,
            format!("relay run {life} took {took:?} to stop; the documented limit is {timeout:?} plus four seconds"),
        );
    }
}

fn end(world: &World, life: Life, outcome: Option<Result<RelayReport, RelayError>>, drains: bool) {
    let mut shared = world.shared();
    let how = match &outcome {
        None => "crashed",
        Some(Ok(_)) => "stopped",
        Some(Err(_)) => "failed",
    };
    shared.checker.ended(life, how);
    shared.reconnect(life);
    shared.log_kept_by.take_if(|keeper| *keeper == life);
    if let Some(Err(error)) = outcome
        && !drains
    {
        shared
            .checker
            .violate(Invariant::Progress, format!("relay run {life} gave up: {error}"));
    }
}
