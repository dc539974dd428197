//! Faults of the whole store or broker, or of single relays.
//!
//! Invariant: all faults end before the final phase, except that one relay may stay cut off.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::broker::refusal;
use super::plan::{self, Cut};
use super::world::{Shared, World};
use super::writers;

const LEASE_MAX: Duration = Duration::from_secs(1);

pub(super) async fn change(world: Arc<World>, every: Duration) {
    loop {
        let (pause, lasts, kind) = {
            let rng = &mut world.shared().rng;
            let pause = every.mul_f64(rng.f64() * 2.0);
            (pause, plan::ms(rng, 20..=1200), rng.u8(0..8))
        };
        sleep(pause).await;
        let end = (Instant::now() + lasts).min(world.calm_at);
        if world.shared().is_calm {
            return;
        }
        let (what, set): (_, fn(&mut Shared, bool)) = match kind {
            0 => ("the store is down", |shared, down| shared.store_is_down = down),
            1 => ("the broker is down", |shared, down| shared.broker_is_down = down),
            2 => ("the broker refuses", |shared, refuses| {
                shared.broker_refuses = refuses.then(|| refusal(&mut shared.rng));
            }),
            3 => ("both are down", |shared, down| {
                (shared.store_is_down, shared.broker_is_down) = (down, down);
            }),
            _ => {
                change_once(&world, kind, end).await;
                continue;
            }
        };
        note(&world, what);
        set(&mut world.shared(), true);
        sleep_until(end).await;
        set(&mut world.shared(), false);
        note(&world, "store and broker are back");
    }
}

async fn change_once(world: &World, kind: u8, end: Instant) {
    match kind {
        4 if world.plan.loses => lose(world),
        5 if world.plan.forgets => {
            note(world, "broker forgets");
            world.broker.forget_ids();
            world.shared().checker.forgot();
        }
        6 | 7 => cut_off_until(world, end).await,
        _ => {}
    }
}

/// Changes wall clocks and lease times. A suspension advances all wall clocks.
pub(super) async fn change_clocks(world: Arc<World>, every: Duration) {
    // Setting a wall clock back within one lease would hide a suspension.
    let recently = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < LEASE_MAX);
    let (mut set_back_at, mut suspended_at) = (None, None);
    loop {
        writers::wait(&world, every).await;
        let mut shared = world.shared();
        if shared.is_calm {
            return;
        }
        let by = plan::ms(&mut shared.rng, 1..=2000);
        let by_ms = by.as_millis() as i64;
        match shared.rng.u8(0..3) {
            0 => {
                let relay = shared.rng.u32(0..world.plan.relays);
                let is_back = shared.rng.bool() && !recently(suspended_at);
                let by_ms = if is_back { -by_ms } else { by_ms };
                set_back_at = is_back.then(Instant::now).or(set_back_at);
                shared.set_clock(relay, by_ms);
                shared
                    .checker
                    .history
                    .note(format!("the clock of relay {relay} jumps by {by_ms} ms"));
            }
            1 if !recently(set_back_at) => {
                suspended_at = Some(Instant::now());
                world.store.age_leases(by);
                shared.checker.aged(by, true);
                if !world.wrong.is_asleep() {
                    (0..world.plan.relays).for_each(|relay| shared.set_clock(relay, by_ms));
                }
                shared
                    .checker
                    .history
                    .note(format!("after a suspension every clock jumps by {by_ms} ms"));
            }
            _ => {
                world.store.age_leases(by);
                shared.checker.aged(by, false);
                shared
                    .checker
                    .history
                    .note(format!("the store's clock jumps by {by_ms} ms"));
            }
        }
    }
}

pub(super) async fn change_log(world: Arc<World>, every: Duration) {
    loop {
        writers::wait(&world, every).await;
        let mut shared = world.shared();
        let (Some(plan), Some(log), false) = (&world.plan.log, &world.log, shared.is_calm) else {
            return;
        };
        let what = match shared.rng.u8(0..6) {
            0 if plan.is_lost => {
                log.lose();
                "the log is lost"
            }
            1 if plan.hides => {
                log.hide_next(shared.rng.u32(1..=20));
                "commits cannot be seen"
            }
            2 => {
                log.write_elsewhere(shared.rng.u64(1..=300));
                "others write"
            }
            _ => {
                log.interrupt();
                "the reading breaks"
            }
        };
        shared.checker.history.note(what);
    }
}

pub(super) async fn set_back_row_ids(world: Arc<World>, after: Duration) {
    sleep(after).await;
    world.store.set_back_row_ids();
    let what = "the counter of row ids is set back";
    let mut shared = world.shared();
    shared.checker.copies_are_anywhere = true;
    shared.checker.history.note(what);
}

pub(super) async fn cut_off(world: Arc<World>, from: Duration, cut: Cut) {
    sleep(from).await;
    let mut shared = world.shared();
    shared.cut_off.insert(0, cut);
    shared.checker.history.note("relay 0 is cut off for good");
}

async fn cut_off_until(world: &World, end: Instant) {
    let relay = {
        let mut shared = world.shared();
        let relay = shared.rng.u32(1..=world.plan.relays);
        let cut = Cut::draw(&mut shared.rng);
        shared.cut_off.insert(relay, cut);
        shared.checker.history.note(format!("relay {relay} is cut off"));
        relay
    };
    sleep_until(end).await;
    world.shared().cut_off.remove(&relay);
    note(world, "reaches all again");
}

/// Loses messages of the stream. If the latest messages are lost, the broker also forgets their
/// ids; the ids of single deleted messages stay.
fn lose(world: &World) {
    let mut shared = world.shared();
    let Shared { rng, checker, .. } = &mut *shared;
    let is_tail = rng.bool();
    let stream_sequences: HashSet<u64> = if is_tail {
        checker.stream_sequences().rev().take(rng.usize(1..=20)).collect()
    } else {
        checker.stream_sequences().filter(|_| rng.u8(..) < 30).collect()
    };
    world.broker.lose_stream_sequences(&stream_sequences, is_tail);
    checker.lost(&stream_sequences, is_tail);
}

fn note(world: &World, what: &'static str) {
    world.shared().checker.history.note(what);
}
