//! Verdicts that the store refuses for their own sake, while it takes others.
//!
//! Invariants: none of them keeps another verdict from being settled, nor a partition from being given back. A lane that such a verdict closes stays closed. A
//! message that the store refuses to set aside is left to it, as pending, and is not set aside again before the next try. Not here: how the verdict is found
//! among others, see [`verdicts`](super::verdicts).

use std::collections::{HashSet, VecDeque};
use std::mem;

use tokio::time::Instant;

use super::lanes::Key;
use super::verdicts::Given;

#[derive(Debug, Default)]
pub(super) struct Refused {
    verdicts: VecDeque<Given>,
    /// Messages that the store refuses to set aside.
    left: HashSet<i64>,
    /// Messages that it refused to set aside before, and that may be set aside again.
    left_before: HashSet<i64>,
    /// When the one that has waited for longest is tried again.
    retry_at: Option<Instant>,
    /// Tries since one was taken.
    tries: u32,
}

impl Refused {
    pub(super) fn put(&mut self, given: Given) {
        self.verdicts.push_back(given);
    }

    /// Returns whether the store refused to set it aside before.
    pub(super) fn leave(&mut self, row_id: i64) -> bool {
        self.left.insert(row_id);
        self.left_before.remove(&row_id)
    }

    /// The message is due after all.
    pub(super) fn is_due(&mut self, row_id: i64) {
        self.left.remove(&row_id);
        self.left_before.remove(&row_id);
    }

    /// Whether it is left as pending.
    pub(super) fn leaves(&self, row_id: i64) -> bool {
        self.left.contains(&row_id)
    }

    /// Whether one of them closes this lane.
    pub(super) fn closes(&self, key: Key) -> bool {
        self.verdicts.iter().any(|given| given.closes == Some(key))
    }

    pub(super) fn row_ids(&self) -> impl Iterator<Item = i64> {
        self.verdicts.iter().map(|given| given.settlement.row_id)
    }

    /// Verdicts that are kept.
    pub(super) fn kept(&self) -> usize {
        self.verdicts.len()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.verdicts.len() + self.left.len()
    }

    /// One more try; returns which.
    pub(super) fn count_try(&mut self) -> u32 {
        self.tries = self.tries.saturating_add(1);
        self.tries
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at.filter(|_| self.count() > 0)
    }

    pub(super) fn set_retry_at(&mut self, at: Instant) {
        self.retry_at = Some(at);
    }

    /// The one to try again. What was left may be set aside again.
    pub(super) fn next(&mut self) -> Option<Given> {
        self.left_before.extend(self.left.drain());
        self.retry_at = None;
        self.verdicts.pop_front()
    }

    /// One of them was taken, so the others may be taken as well.
    pub(super) fn take_all(&mut self) -> VecDeque<Given> {
        mem::take(self).verdicts
    }

    /// Takes those for which this holds.
    pub(super) fn take_if(&mut self, is_taken: impl Fn(&Given) -> bool) -> Vec<Given> {
        self.left.clear();
        self.left_before.clear();
        let all = mem::take(&mut self.verdicts).into_iter();
        let (taken, kept): (Vec<Given>, Vec<Given>) = all.partition(|given| is_taken(given));
        self.verdicts = kept.into();
        taken
    }
}
