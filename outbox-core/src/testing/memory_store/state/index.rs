//! Which rows are pending, waiting and dead, and which aggregates are held.
//!
//! Invariants: a hold lists exactly the sequenced rows of its aggregate that wait and the dead one that halts it, and exists only while there are
//! any; an unsequenced row that waits is in `alone`.

use std::collections::{BTreeSet, HashMap};

use time::OffsetDateTime;

use super::Row;
use crate::message::Aggregate;
use crate::store::MessageStatus;

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) pending: BTreeSet<i64>,
    pub(super) dead: BTreeSet<i64>,
    pub(super) holds: HashMap<Aggregate, Hold>,
    /// Unsequenced rows that wait, by the end of their time.
    pub(super) alone: BTreeSet<(OffsetDateTime, i64)>,
    /// Sequenced rows that are pending.
    pending_of: HashMap<Aggregate, BTreeSet<i64>>,
}

/// The hold on an aggregate.
#[derive(Debug)]
pub(super) struct Hold {
    /// Due from then on, unless it is halted.
    pub(super) until: OffsetDateTime,
    /// The dead row that halts it.
    pub(super) halted_by: Option<i64>,
    pub(super) waiting: BTreeSet<i64>,
}

impl Hold {
    fn new(until: OffsetDateTime) -> Self {
        Self {
            until,
            halted_by: None,
            waiting: BTreeSet::new(),
        }
    }

    pub(super) fn is_halted(&self) -> bool {
        self.halted_by.is_some()
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
                    self.pending_of
                        .entry(aggregate.clone())
                        .or_default()
                        .insert(row.row_id);
                }
            }
            MessageStatus::Waiting if row.is_sequenced() => {
                self.hold(aggregate, row.message.created_at)
                    .waiting
                    .insert(row.row_id);
            }
            MessageStatus::Waiting => {
                self.alone.insert((row.waits_until, row.row_id));
            }
            MessageStatus::Dead => {
                self.dead.insert(row.row_id);
                if row.halts {
                    self.hold(aggregate, row.message.created_at).halted_by = Some(row.row_id);
                }
            }
            MessageStatus::Published => {}
        }
    }

    pub(super) fn remove(&mut self, row: &Row) {
        self.pending.remove(&row.row_id);
        self.dead.remove(&row.row_id);
        self.alone.remove(&(row.waits_until, row.row_id));
        if let Some(hold) = self.holds.get_mut(&row.message.aggregate) {
            hold.waiting.remove(&row.row_id);
            hold.halted_by = hold.halted_by.filter(|row_id| *row_id != row.row_id);
        }
        if let Some(pending) = self.pending_of.get_mut(&row.message.aggregate) {
            pending.remove(&row.row_id);
            if pending.is_empty() {
                self.pending_of.remove(&row.message.aggregate);
            }
        }
    }

    /// The hold of an aggregate; a new one is due at `until`.
    pub(super) fn hold(&mut self, aggregate: &Aggregate, until: OffsetDateTime) -> &mut Hold {
        self.holds
            .entry(aggregate.clone())
            .or_insert_with(|| Hold::new(until))
    }

    /// Ends the hold of an aggregate, unless something waits under it or halts it.
    pub(super) fn end_hold(&mut self, aggregate: &Aggregate) {
        if let Some(hold) = self.holds.get(aggregate)
            && hold.waiting.is_empty()
            && !hold.is_halted()
        {
            self.holds.remove(aggregate);
        }
    }

    /// Sequenced rows of an aggregate that are pending, in their order.
    pub(super) fn pending_of(&self, aggregate: &Aggregate) -> impl Iterator<Item = i64> {
        self.pending_of.get(aggregate).into_iter().flatten().copied()
    }

    /// Rows that wait, sequenced or not.
    pub(super) fn waiting(&self) -> usize {
        let held: usize = self.holds.values().map(|hold| hold.waiting.len()).sum();
        held + self.alone.len()
    }
}
