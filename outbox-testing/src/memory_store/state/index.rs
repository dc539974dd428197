//! The index of rows and blocks.
//!
//! Invariants: a block lists exactly the waiting sequenced rows of its aggregate and the dead row
//! that halts it, and is never empty. Waiting unsequenced rows are in `alone`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use outbox_core::message::Aggregate;
use outbox_core::store::{BlockedAggregate, MessageStatus};
use time::OffsetDateTime;

use super::Row;
use super::admin::since;
pub(super) use crate::memory_store::row::Place;

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) pending: BTreeSet<i64>,
    pub(super) dead: BTreeSet<i64>,
    pub(super) blocks: HashMap<Aggregate, Block>,
    pub(super) alone: BTreeSet<(OffsetDateTime, i64)>,
    pending_of: HashMap<Aggregate, BTreeMap<Place, i64>>,
}

/// Row ids in publishing order: originals by sequence, and each copy before the first original
/// recorded after the copy.
pub(super) fn in_order(rows: &BTreeMap<Place, i64>) -> impl Iterator<Item = (Place, i64)> {
    let first_copy = Place::Copy(i64::MIN);
    let mut originals = rows.range(..first_copy).peekable();
    let mut copies = rows.range(first_copy..).peekable();
    let mut next = move || match (originals.peek(), copies.peek()) {
        (Some((_, original)), Some((_, copy))) if copy < original => copies.next(),
        (Some(_), _) => originals.next(),
        (None, _) => copies.next(),
    };
    std::iter::from_fn(move || next().map(|(place, row_id)| (*place, *row_id)))
}

pub(super) fn precedes(one: (Place, i64), other: (Place, i64)) -> bool {
    match (one.0, other.0) {
        (Place::Sequence(one), Place::Sequence(other)) => one < other,
        _ => one.1 < other.1,
    }
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) until: OffsetDateTime,
    pub(super) halted_by: Option<i64>,
    pub(super) waiting: BTreeMap<Place, i64>,
}

impl Block {
    pub(super) fn first(&self) -> Option<(Place, i64)> {
        in_order(&self.waiting).next()
    }

    pub(super) fn is_halted(&self) -> bool {
        self.halted_by.is_some()
    }

    pub(super) fn shown(&self, aggregate: &Aggregate, now: OffsetDateTime) -> BlockedAggregate {
        BlockedAggregate {
            aggregate: aggregate.clone(),
            halted_by: self.halted_by,
            blocked_for: (!self.is_halted()).then(|| since(now, self.until)),
        }
    }

    pub(super) fn is_due(&self, now: OffsetDateTime) -> bool {
        !self.is_halted() && self.until <= now
    }
}

impl Index {
    pub(super) fn insert(&mut self, row: &Row) {
        let aggregate = &row.message.aggregate;
        match row.status {
            MessageStatus::Pending => {
                self.pending.insert(row.row_id);
                if row.is_sequenced() {
                    let pending = self.pending_of.entry(aggregate.clone()).or_default();
                    pending.insert(row.place(), row.row_id);
                }
            }
            MessageStatus::Waiting if row.is_sequenced() => {
                let block = self.block(aggregate, row.message.created_at);
                block.waiting.insert(row.place(), row.row_id);
            }
            MessageStatus::Waiting => {
                self.alone.insert((row.waits_until, row.row_id));
            }
            MessageStatus::Dead => {
                self.dead.insert(row.row_id);
                if row.halts {
                    self.block(aggregate, row.message.created_at).halted_by = Some(row.row_id);
                }
            }
            MessageStatus::Published | MessageStatus::Logged => {}
        }
    }

    pub(super) fn remove(&mut self, row: &Row) {
        self.pending.remove(&row.row_id);
        self.dead.remove(&row.row_id);
        self.alone.remove(&(row.waits_until, row.row_id));
        if let Some(block) = self.blocks.get_mut(&row.message.aggregate) {
            block.waiting.remove(&row.place());
            block.halted_by = block.halted_by.filter(|row_id| *row_id != row.row_id);
        }
        if let Some(pending) = self.pending_of.get_mut(&row.message.aggregate) {
            pending.remove(&row.place());
            if pending.is_empty() {
                self.pending_of.remove(&row.message.aggregate);
            }
        }
    }

    pub(super) fn block(&mut self, aggregate: &Aggregate, until: OffsetDateTime) -> &mut Block {
        let block = Block {
            until,
            halted_by: None,
            waiting: BTreeMap::new(),
        };
        self.blocks.entry(aggregate.clone()).or_insert(block)
    }

    pub(super) fn end_block(&mut self, aggregate: &Aggregate) {
        if let Some(block) = self.blocks.get(aggregate)
            && block.waiting.is_empty()
            && !block.is_halted()
        {
            self.blocks.remove(aggregate);
        }
    }

    pub(super) fn pending_of(&self, aggregate: &Aggregate) -> impl Iterator<Item = (Place, i64)> {
        self.pending_of.get(aggregate).into_iter().flat_map(in_order)
    }

    pub(super) fn waiting(&self) -> usize {
        let blocked: usize = self.blocks.values().map(|block| block.waiting.len()).sum();
        blocked + self.alone.len()
    }
}
