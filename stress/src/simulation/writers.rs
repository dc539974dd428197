//! Writers, which record events, and operators, who decide about dead letters.
//!
//! Invariant: the checker registers messages exactly when their transaction commits.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outbox_core::event::{AggregateId, DomainEvent, EventDescriptor};
use outbox_core::log::MessageLog as _;
use outbox_core::message::NewMessage;
use outbox_core::relay::Retention;
use outbox_core::store::{OutboxAdmin as _, Selection, StoredMessage};
use outbox_testing::MemoryTransaction;
use outbox_testing::Operator as _;
use tokio::time::sleep;

use super::checker::{Draft, Poison};
use super::history::MessageNo;
use super::pauses::{TYPES, name};
use super::world::{Shared, World};
use super::{maintenance, pauses, plan, wrong};

/// An event without the derive macro, to stay out of the event catalogue.
#[derive(Debug, serde::Serialize)]
struct Noted {
    #[serde(skip)]
    aggregate: u32,
    #[serde(skip)]
    aggregate_type: usize,
    #[serde(skip)]
    sequenced: bool,
    nonce: u32,
    filler: &'static str,
    meant: Option<u32>,
}

const fn descriptor(aggregate_type: usize, sequenced: bool) -> EventDescriptor {
    EventDescriptor {
        aggregate: TYPES[aggregate_type],
        name: if sequenced { "noted" } else { "sampled" },
        version: 1,
        subject: None,
        sequenced,
        rust_type: "Noted",
        file: file!(),
        line: line!(),
    }
}

impl DomainEvent for Noted {
    const DESCRIPTORS: &'static [EventDescriptor] = &[
        descriptor(0, true),
        descriptor(0, false),
        descriptor(1, true),
        descriptor(1, false),
    ];

    fn descriptor(&self) -> &'static EventDescriptor {
        &Self::DESCRIPTORS[2 * self.aggregate_type + usize::from(!self.sequenced)]
    }

    fn aggregate_id(&self) -> AggregateId {
        AggregateId::new(self.aggregate.to_string())
    }

    fn dedup_key(&self) -> Option<String> {
        self.meant.map(|meant| meant.to_string())
    }
}

pub(super) async fn write(world: Arc<World>) {
    let pause = world.plan.chaos / (world.plan.transactions + 1);
    let skew = world.plan.writer.skew_max;
    let skew =
        plan::ms(&mut world.shared().rng, 0..=2 * skew.as_millis() as u64).as_secs_f64() - skew.as_secs_f64();
    for _ in 0..world.plan.transactions {
        wait(&world, pause).await;
        transact(&world, skew).await;
    }
}

pub(super) async fn wait(world: &World, mean: Duration) {
    let time = {
        let mut shared = world.shared();
        mean.mul_f64(shared.rng.f64() * 2.0)
    };
    sleep(time).await;
}

async fn transact(world: &World, skew: f64) {
    let mut transaction = world.store.begin();
    let mut drafts = Vec::new();
    let (events, mut hold, rolls_back, unknown) = {
        let rng = &mut world.shared().rng;
        let events = rng.u32(1..=world.plan.events_max);
        let hold = if rng.bool() {
            plan::ms(rng, 0..=400)
        } else {
            Duration::ZERO
        };
        let rolls_back = plan::chance(rng, world.plan.writer.rolls_back);
        (events, hold, rolls_back, Unknown::draw(rng, world))
    };
    let tries_again = unknown.is_some() && world.plan.retention == Retention::Keep;
    let mut recorded = Vec::new();
    for _ in 0..events {
        let event = draw_event(world, tries_again);
        drafts.extend(record(world, &mut transaction, &event, skew));
        recorded.push(event);
        if !hold.is_zero() {
            sleep(std::mem::take(&mut hold)).await;
        }
    }
    let commit = Commit { transaction, drafts };
    match unknown {
        _ if rolls_back => commit.roll_back(world),
        None => commit.commit(world),
        Some(unknown) => {
            let event = format!("a writer does not learn of its commit: {unknown:?}");
            world.shared().checker.history.note(event);
            match unknown {
                Unknown::Done => commit.commit(world),
                Unknown::Undone => commit.roll_back(world),
                Unknown::Late(time) => {
                    try_again(world, &recorded, skew, tries_again);
                    sleep(time).await;
                    commit.commit(world);
                }
            }
            try_again(world, &recorded, skew, tries_again);
        }
    }
}

fn try_again(world: &World, events: &[Noted], skew: f64, tries_again: bool) {
    if tries_again {
        for event in events {
            world.shared().checker.means(event.meant);
        }
        let mut transaction = world.store.begin();
        let record = |event| record(world, &mut transaction, event, skew);
        let drafts = events.iter().filter_map(record).collect();
        Commit { transaction, drafts }.commit(world);
    }
}

#[derive(Debug, Clone, Copy)]
enum Unknown {
    Done,
    Undone,
    /// The transaction commits this much later, unless the retry took the deduplication keys first.
    Late(Duration),
}

impl Unknown {
    fn draw(rng: &mut Rng, world: &World) -> Option<Self> {
        plan::chance(rng, world.plan.writer.unknown).then(|| match rng.u8(0..3) {
            0 => Self::Done,
            1 => Self::Undone,
            _ => Self::Late(plan::ms(rng, 1..=800)),
        })
    }
}

struct Commit {
    transaction: MemoryTransaction,
    drafts: Vec<Draft>,
}

impl Commit {
    fn roll_back(self, world: &World) {
        let event = format!("{} messages are rolled back", self.drafts.len());
        world.shared().checker.history.note(event);
    }

    fn commit(self, world: &World) {
        let _elsewhere = world.plan.writers_are_remote.then(outbox_core::wake::isolate);
        if self.transaction.commit().is_ok() {
            let mut shared = world.shared();
            let mut recorded = Vec::new();
            for draft in self.drafts {
                match draft.poison {
                    Poison::Unreadable => {
                        world.store.corrupt(draft.id);
                    }
                    Poison::Unrecordable => shared.unrecordable.push(draft.id),
                    _ => {}
                }
                recorded.push(shared.checker.committed(draft));
            }
            note_logged(world, &mut shared, recorded);
            world.store.refuse_verdicts(&shared.unrecordable);
        }
    }
}

fn note_logged(world: &World, shared: &mut Shared, recorded: Vec<MessageNo>) {
    if let Some(log) = &world.log
        && let Ok(end) = wrong::now(log.written())
    {
        shared.checker.logged(end, recorded);
    }
}

fn draw_event(world: &World, has_key: bool) -> Noted {
    let mut shared = world.shared();
    let meant = has_key.then_some(shared.meant);
    shared.meant += u32::from(has_key);
    let rng = &mut shared.rng;
    let plan = &world.plan.writer;
    let aggregate = rng.u32(0..world.plan.aggregates);
    Noted {
        aggregate,
        aggregate_type: pauses::type_of(world, aggregate),
        sequenced: !plan::chance(rng, plan.unsequenced),
        nonce: rng.u32(..),
        filler: if rng.u8(..) < 40 {
            "fills more of the buffer than others do, much more"
        } else {
            ""
        },
        meant,
    }
}

fn record(world: &World, transaction: &mut MemoryTransaction, event: &Noted, skew: f64) -> Option<Draft> {
    let mut shared = world.shared();
    let known = shared.checker.messages.len() as MessageNo;
    let rng = &mut shared.rng;
    let plan = &world.plan.writer;
    let mut message = NewMessage::from_event(event).ok()?;
    let delay = plan::chance(rng, plan.delayed).then(|| plan::ms(rng, 1..=1500));
    let available_at = delay.map(|delay| world.store.now() + delay + time::Duration::seconds_f64(skew));
    if let Some(time) = available_at {
        message = message.available_at(time);
    }
    let poison = if plan::chance(rng, plan.poison) {
        match rng.u8(0..5) {
            0 => Poison::Permanent,
            1 => Poison::Unreadable,
            _ => Poison::Unclassified(rng.u32(1..=6)),
        }
    } else if plan::chance(rng, plan.unrecordable) {
        Poison::Unrecordable
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
        payload: message.payload().into(),
        meant: event.meant,
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
                let _was_blocked = wrong::now(world.store.resume(&name(&world, aggregate)));
            }
            3 if shared.rng.bool() => replay(&world, &mut shared),
            4 => maintenance::purge(&world, &mut shared),
            _ => {}
        }
    }
}

fn list(world: &World, selection: &Selection) -> Vec<StoredMessage> {
    wrong::now(world.store.list(selection, ALL)).unwrap_or_default()
}

fn decide(world: &World, shared: &mut Shared, dead: &StoredMessage, skip: bool) {
    let Some(no) = shared.checker.no_of(dead.id) else {
        return;
    };
    let event = format!("an operator decides on message {no}, skip: {skip}");
    shared.checker.history.note(event);
    let selection = Selection::id(dead.id);
    let _count = if skip {
        shared.checker.skipped(no);
        wrong::now(world.store.skip(&selection))
    } else {
        shared.checker.retried(no);
        wrong::now(world.store.retry(&selection))
    };
}

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
        let stored = list(world, &Selection::all().aggregate(&name(world, aggregate)));
        let copy = stored
            .iter()
            .rev()
            .find(|row| shared.checker.no_of(row.id).is_none());
        let Some(copy) = copy else { return };
        let draft = Draft {
            id: copy.id,
            copy_of: Some(first),
            meant: None,
            available_at: None,
            known: shared.checker.messages.len() as MessageNo,
            ..shared.checker.account(first).draft.clone()
        };
        let no = shared.checker.committed(draft);
        note_logged(world, shared, vec![no]);
        let event = format!("an operator replays message {first} as {no}");
        shared.checker.history.note(event);
    }
}

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
