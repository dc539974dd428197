//! Writers, which record events, and operators, who decide about dead letters.
//!
//! Invariant: the messages of a transaction enter the checker's books at the moment of its commit, or never.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::event::{AggregateId, DomainEvent, EventDescriptor};
use outbox_core::message::{Aggregate, NewMessage};
use outbox_core::store::{OutboxAdmin as _, Selection, StoredMessage};
use outbox_core::testing::MemoryTransaction;
use tokio::time::sleep;

use super::checker::{Draft, Poison};
use super::history::{Event, MessageNo};
use super::world::{Shared, World};
use super::{maintenance, plan, wrong};

/// The event of the simulation. Written without the derive, so that it stays out of the catalogue of the tested
/// program.
#[derive(Debug, serde::Serialize)]
struct Noted {
    #[serde(skip)]
    aggregate: u32,
    #[serde(skip)]
    sequenced: bool,
    filler: &'static str,
}

const fn descriptor(name: &'static str, sequenced: bool) -> EventDescriptor {
    EventDescriptor {
        aggregate: "sim",
        name,
        version: 1,
        subject: None,
        sequenced,
        rust_type: "Noted",
        file: file!(),
        line: line!(),
    }
}

impl DomainEvent for Noted {
    const DESCRIPTORS: &'static [EventDescriptor] =
        &[descriptor("noted", true), descriptor("sampled", false)];

    fn descriptor(&self) -> &'static EventDescriptor {
        &Self::DESCRIPTORS[usize::from(!self.sequenced)]
    }

    fn aggregate_id(&self) -> AggregateId {
        AggregateId::new(self.aggregate.to_string())
    }

    fn dedup_key(&self) -> Option<String> {
        None
    }
}

pub(super) async fn write(world: Arc<World>) {
    let pause = world.plan.chaos / (world.plan.transactions + 1);
    for _ in 0..world.plan.transactions {
        wait(&world, pause).await;
        transact(&world).await;
    }
}

/// Waits for a random time, up to twice the mean.
pub(super) async fn wait(world: &World, mean: Duration) {
    let time = {
        let mut shared = world.shared();
        mean.mul_f64(shared.rng.f64() * 2.0)
    };
    sleep(time).await;
}

/// Runs one transaction and holds it open for a while.
async fn transact(world: &World) {
    let mut transaction = world.store.begin();
    let mut drafts = Vec::new();
    let (events, mut hold, rolls_back) = {
        let rng = &mut world.shared().rng;
        let events = rng.u32(1..=world.plan.events_max);
        let hold = if rng.bool() {
            plan::ms(rng, 0..=400)
        } else {
            Duration::ZERO
        };
        (events, hold, plan::chance(rng, world.plan.writer.rolls_back))
    };
    for _ in 0..events {
        if let Some(draft) = record(world, &mut transaction) {
            drafts.push(draft);
        }
        if !hold.is_zero() {
            // The transaction pauses once, after its first event.
            sleep(std::mem::take(&mut hold)).await;
        }
    }
    if rolls_back {
        drop(transaction);
        let messages = drafts.len() as u32;
        world
            .shared()
            .checker
            .history
            .note(Event::RolledBack { messages });
        return;
    }
    let _elsewhere = world.plan.writers_are_remote.then(outbox_core::wake::isolate);
    if transaction.commit().is_ok() {
        let mut shared = world.shared();
        for draft in drafts {
            if draft.poison == Poison::Unreadable {
                world.store.corrupt(draft.id);
            }
            shared.checker.committed(draft);
        }
    }
}

fn record(world: &World, transaction: &mut MemoryTransaction) -> Option<Draft> {
    let mut shared = world.shared();
    let known = shared.checker.messages.len() as MessageNo;
    let rng = &mut shared.rng;
    let plan = &world.plan.writer;
    let event = Noted {
        aggregate: rng.u32(0..world.plan.aggregates),
        sequenced: !plan::chance(rng, plan.unsequenced),
        filler: if rng.u8(..) < 40 {
            "fills more of the buffer than others do, much more"
        } else {
            ""
        },
    };
    let mut message = NewMessage::from_event(&event).ok()?;
    let available_at = plan::chance(rng, plan.delayed).then(|| world.store.now() + plan::ms(rng, 1..=1500));
    if let Some(time) = available_at {
        message = message.available_at(time);
    }
    let poison = if plan::chance(rng, plan.poison) {
        match rng.u8(0..5) {
            0 => Poison::Permanent,
            1 => Poison::Unreadable,
            _ => Poison::Unclassified(rng.u32(1..=6)),
        }
    } else {
        Poison::None
    };
    let draft = Draft {
        id: message.id(),
        aggregate: event.aggregate,
        partition: message.aggregate().partition(),
        sequenced: event.sequenced,
        available_at,
        poison,
        copy_of: None,
        known,
    };
    transaction.record([message]).ok()?;
    Some(draft)
}

const ALL: NonZeroU32 = NonZeroU32::MAX;

pub(super) async fn operate(world: Arc<World>, every: Duration) {
    loop {
        wait(&world, every).await;
        let mut shared = world.shared();
        if shared.is_calm {
            return;
        }
        let act = shared.rng.u8(0..5);
        let _elsewhere = shared.rng.bool().then(outbox_core::wake::isolate);
        match act {
            0 | 1 => {
                let dead = list(&world, &Selection::dead_letters());
                if !dead.is_empty() {
                    let which = shared.rng.usize(0..dead.len());
                    decide(&world, &mut shared, &dead[which], act == 0);
                }
            }
            2 => {
                let aggregate = shared.rng.u32(0..world.plan.aggregates);
                let _was_blocked = wrong::now(world.store.resume(&name(aggregate)));
            }
            3 if shared.rng.bool() => replay(&world, &mut shared),
            4 => maintenance::purge(&world, &mut shared),
            _ => {}
        }
    }
}

fn name(aggregate: u32) -> Aggregate {
    Aggregate::new("sim", aggregate.to_string())
}

fn list(world: &World, selection: &Selection) -> Vec<StoredMessage> {
    wrong::now(world.store.list(selection, ALL)).unwrap_or_default()
}

/// Retries or skips a dead letter.
fn decide(world: &World, shared: &mut Shared, dead: &StoredMessage, skip: bool) {
    let Some(no) = shared.checker.no_of(dead.id) else {
        return;
    };
    let what = if skip { "skip" } else { "retry" };
    shared.checker.history.note(Event::Operator { what, no });
    let selection = Selection::id(dead.id);
    let _count = if skip {
        shared.checker.skipped(no);
        wrong::now(world.store.skip(&selection))
    } else {
        shared.checker.retried(no);
        wrong::now(world.store.retry(&selection))
    };
}

/// Records a copy of a random message.
fn replay(world: &World, shared: &mut Shared) {
    let known = shared.checker.messages.len();
    if known == 0 {
        return;
    }
    let original = shared.rng.usize(0..known) as MessageNo;
    let Draft {
        id,
        aggregate,
        copy_of,
        ..
    } = shared.checker.account(original).draft;
    let first = copy_of.unwrap_or(original);
    if wrong::now(world.store.replay(&Selection::id(id))).is_ok_and(|copies| copies == 1) {
        let stored = list(world, &Selection::all().aggregate(&name(aggregate)));
        let copy = stored
            .iter()
            .rev()
            .find(|row| shared.checker.no_of(row.id).is_none());
        let Some(copy) = copy else { return };
        let draft = Draft {
            id: copy.id,
            copy_of: Some(first),
            available_at: None,
            known: shared.checker.messages.len() as MessageNo,
            ..shared.checker.account(first).draft.clone()
        };
        let no = shared.checker.committed(draft);
        shared
            .checker
            .history
            .note(Event::Operator { what: "replay", no });
    }
}

/// Retries or skips every message that halts an aggregate, as an operator does once the cause is repaired. Unreadable
/// messages are never repaired, so they are skipped.
pub(super) fn tidy_up(world: &World) {
    let mut shared = world.shared();
    for dead in list(world, &Selection::dead_letters())
        .iter()
        .filter(|row| row.halts)
    {
        let is_unreadable = shared
            .checker
            .no_of(dead.id)
            .is_some_and(|no| shared.checker.account(no).draft.poison == Poison::Unreadable);
        let skip = is_unreadable || world.plan.skips_in_the_end;
        decide(world, &mut shared, dead, skip);
    }
}
