//! Operators who pause publishing. All pauses end soon after the faults.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outbox_core::message::Aggregate;
use outbox_core::store::PauseRequest;
use outbox_testing::Operator as _;
use tokio::time::sleep;

use super::world::{Shared, World};
use super::{plan, wrong};

pub(super) const TYPES: [&str; 2] = ["sim", "other"];

const PAUSED_EVERY: u64 = 3;

#[derive(Debug, Clone)]
pub(super) struct PausePlan {
    every: Duration,
    numbers: u64,
}

impl PausePlan {
    /// Draws pauses from separate random numbers, so that worlds without pauses do not change.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        if !seed.is_multiple_of(PAUSED_EVERY) {
            return None;
        }
        let numbers = seed.wrapping_add(1).wrapping_mul(0xa076_1d64_78bd_642f);
        let mut rng = Rng::with_seed(numbers);
        Some(Self {
            every: plan::ms(&mut rng, 50..=600),
            numbers: rng.u64(..),
        })
    }
}

pub(super) fn name(world: &World, aggregate: u32) -> Aggregate {
    Aggregate::new(TYPES[type_of(world, aggregate)], aggregate.to_string())
}

pub(super) fn type_of(world: &World, aggregate: u32) -> usize {
    match world.plan.pauses {
        Some(_) => aggregate as usize % TYPES.len(),
        None => 0,
    }
}

pub(super) async fn operate(world: Arc<World>, pauses: PausePlan) {
    let mut rng = Rng::with_seed(pauses.numbers);
    loop {
        sleep(pauses.every.mul_f64(rng.f64() * 2.0)).await;
        let mut shared = world.shared();
        if shared.is_calm {
            break;
        }
        let scope = match rng.u8(0..4) {
            0 => None,
            1 => Some(TYPES[0]),
            _ => Some(TYPES[1]),
        };
        if rng.bool() {
            let lasts = rng.bool().then(|| plan::ms(&mut rng, 1..=1500));
            begin(&world, &mut shared, scope, lasts);
        } else {
            end(&world, &mut shared, scope);
        }
    }
    let mut shared = world.shared();
    for scope in [None, Some(TYPES[0]), Some(TYPES[1])] {
        end(&world, &mut shared, scope);
    }
}

fn begin(world: &World, shared: &mut Shared, scope: Option<&'static str>, lasts: Option<Duration>) {
    let request = PauseRequest {
        aggregate_type: scope.map(str::to_owned),
        reason: "the consumer is overrun".to_owned(),
        by: "an operator".to_owned(),
        lasts,
    };
    if wrong::now(world.store.pause(&request)).is_ok() {
        shared.checker.pauses(scope, lasts);
    }
}

fn end(world: &World, shared: &mut Shared, scope: Option<&'static str>) {
    if wrong::now(world.store.unpause(scope)).is_ok_and(|ended| ended) {
        shared.checker.unpauses(scope);
    }
}
