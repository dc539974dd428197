//! Reconciliation and purges. A reconciliation must restore the messages that the stream lacks when
//! it starts.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::message::MessageId;
use outbox_core::publisher::{FailureClass, PublishError, StreamLog};
use outbox_core::relay::Retention;
use outbox_core::relay::reconcile::{ReconcileError, Reconciled, Span, missing, reconcile};
use outbox_core::store::{MessageStatus, OutboxAdmin as _, PurgeRequest, Purged, StoreError};
use time::OffsetDateTime;
use tokio::time::sleep;

use super::broker::SimPublisher;
use super::checker::Poison;
use super::history::{Life, MessageNo};
use super::relays::CrashingRun;
use super::store::SimStore;
use super::world::{Shared, World};
use super::{Invariant, Wrong, plan, writers, wrong};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
struct SimLog {
    world: Arc<World>,
    life: Life,
}

impl StreamLog for SimLog {
    async fn message_ids(&self, _from: OffsetDateTime) -> Result<HashSet<MessageId>, PublishError> {
        let world = &self.world;
        let (latency, fails) = {
            let mut shared = world.shared();
            let plan = &world.plan.broker;
            let fails = !shared.is_calm && plan::chance(&mut shared.rng, plan.vanishes);
            let max = plan.latency_max.as_millis() as u64;
            (plan::ms(&mut shared.rng, 0..=max), fails)
        };
        sleep(latency).await;
        let mut shared = world.shared();
        if fails || shared.broker_is_down {
            return Err(PublishError::new(FailureClass::Unknown, "simulated fault"));
        }
        let ids = shared.checker.listed(self.life);
        Ok(match world.wrong {
            Wrong::TrustsConfirmations => shared.checker.ids().collect(),
            _ => ids.into_iter().collect(),
        })
    }
}

fn seams(world: &Arc<World>) -> (SimStore, SimPublisher, SimLog, Span) {
    let life = {
        let mut shared = world.shared();
        let life = shared.begin_life(world.plan.relays);
        shared.checker.reconciles(life);
        life
    };
    let now = world.store.now();
    let span = Span {
        from: now - DAY,
        until: now + DAY,
    };
    let world = world.clone();
    (
        SimStore {
            world: world.clone(),
            life,
        },
        SimPublisher {
            world: world.clone(),
            life,
        },
        SimLog { world, life },
        span,
    )
}

pub(super) async fn reconcile_every(world: Arc<World>, every: Duration) {
    loop {
        writers::wait(&world, every).await;
        if world.shared().is_calm {
            return;
        }
        let (store, publisher, log, span) = seams(&world);
        let life = log.life;
        let run = CrashingRun::new(
            reconcile(&store, &publisher, &log, span, Duration::MAX),
            world.clone(),
            life,
        );
        let how = match run.await {
            None => "crashed",
            Some(Ok(_)) => "reconciled",
            Some(Err(_)) => "failed to reconcile",
        };
        let mut shared = world.shared();
        shared.checker.ended(life, how);
        shared.reconnect(life);
    }
}

/// Reconciles the stream. The broker accepts deleted messages only after their ids are cleared.
pub(super) async fn restore(world: &Arc<World>) {
    let lost = world.shared().checker.missing();
    let found = attempt(world, true).await;
    expect(world, found.missing == lost, || {
        format!("{lost} messages are missing on the stream, reconciling found {found:?}")
    });
    if found.dropped > 0 {
        world.broker.forget_ids();
        world.shared().checker.forgot();
        attempt(world, true).await;
    }
    let left = attempt(world, false).await;
    expect(world, left.missing == 0, || {
        format!("after reconciling: {left:?}")
    });
}

async fn attempt(world: &Arc<World>, publishes: bool) -> Reconciled {
    let (store, publisher, log, span) = seams(world);
    let life = log.life;
    let result: Result<_, ReconcileError> = if publishes {
        reconcile(&store, &publisher, &log, span, Duration::MAX).await
    } else {
        missing(&store, &log, span).await
    };
    world.shared().checker.ended(life, "reconciled");
    result.unwrap_or_else(|error| {
        let what = format!("with nothing going wrong, reconciling failed: {error}");
        world.shared().checker.violate(Invariant::Progress, what);
        Reconciled::default()
    })
}

fn expect(world: &World, holds: bool, what: impl FnOnce() -> String) {
    if !holds {
        world.shared().checker.violate(Invariant::NoLoss, what());
    }
}

/// Due messages in partitions without an owner and in aggregates without a rejected or delayed
/// message.
pub(super) fn due_now(world: &World, shared: &Shared) -> Vec<MessageNo> {
    let now = world.store.now();
    let listed = wrong::now(world.store.blocked(NonZeroU32::MAX)).unwrap_or_default();
    let waits = listed
        .into_iter()
        .filter(|block| block.blocked_for.is_none_or(|time| !time.is_zero()));
    let mut is_clear = vec![true; world.plan.aggregates as usize];
    for no in waits.filter_map(|block| block.aggregate.id.parse::<usize>().ok()) {
        is_clear[no] = false;
    }
    let rows = world.store.rows().into_iter();
    let is_open: HashSet<MessageId> = rows
        .filter(|row| matches!(row.status, MessageStatus::Pending | MessageStatus::Waiting))
        .map(|row| row.message.id)
        .collect();
    let messages = &shared.checker.messages;
    for message in messages {
        let is_delayed = message.draft.available_at.is_some_and(|at| at > now);
        if message.draft.poison != Poison::None || is_delayed {
            is_clear[message.draft.aggregate as usize] = false;
        }
    }
    (0..)
        .zip(messages)
        .filter(|(_, message)| message.draft.sequenced && message.settled_at.is_none())
        .filter(|(_, message)| is_clear[message.draft.aggregate as usize])
        .filter(|(_, message)| {
            !shared.checker.is_owned(message.draft.partition) && is_open.contains(&message.draft.id)
        })
        .map(|(no, _)| no)
        .collect()
}

pub(super) fn purge(world: &World, shared: &mut Shared) {
    let Retention::KeepFor(older_than) = world.plan.retention else {
        return;
    };
    let mut after = None;
    loop {
        let limit = NonZeroU32::new(shared.rng.u32(1..=20)).unwrap_or(NonZeroU32::MIN);
        let request = PurgeRequest {
            older_than: Some(older_than),
            keys_older_than: older_than,
            after,
            limit,
        };
        match purge_once(world, shared, request) {
            Ok(purged) if purged.next.is_some() => after = purged.next,
            _ => return,
        }
    }
}

pub(super) fn purge_once(
    world: &World,
    shared: &mut Shared,
    request: PurgeRequest,
) -> Result<Purged, StoreError> {
    purge_by(world, shared, request, |shared| shared.backend.purge(request))
}

pub(super) fn purge_by(
    world: &World,
    shared: &mut Shared,
    request: PurgeRequest,
    purge: impl FnOnce(&mut Shared) -> Result<Purged, StoreError>,
) -> Result<Purged, StoreError> {
    let ids = || world.store.rows().into_iter().map(|row| row.message.id);
    let before: Vec<MessageId> = ids().collect();
    let purged = purge(shared)?;
    let left: HashSet<MessageId> = ids().collect();
    let gone: Vec<MessageId> = before.into_iter().filter(|id| !left.contains(id)).collect();
    shared
        .checker
        .purged(&gone, request.older_than.unwrap_or(Duration::MAX));
    Ok(purged)
}
