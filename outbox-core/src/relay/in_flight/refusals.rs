//! Verdicts that the store refuses, while it takes others.
//!
//! Invariants: no refused verdict keeps another verdict from being settled, nor a partition from being given back. A lane that a refused verdict closes stays
//! closed. A message that the store refuses to set aside stays pending in the store, and is not set aside again before the next try. Not here: how the refused
//! verdict is found among others, see [`verdicts`](super::verdicts).

use std::collections::VecDeque;
use std::mem;

use tokio::time::Instant;

use super::lanes::Key;
use super::verdicts::Given;
use crate::quick_map::QuickSet;
use crate::store::RowKey;

#[derive(Debug, Default)]
pub(super) struct Refused {
    verdicts: VecDeque<Given>,
    /// Messages that the store refuses to set aside.
    left: QuickSet<RowKey>,
    /// Messages that it refused to set aside before, and that may be set aside again.
    left_before: QuickSet<RowKey>,
    /// When the verdict that was refused first is tried again.
    retry_at: Option<Instant>,
    /// Number of tries since the store took one of them.
    tries: u32,
}

impl Refused {
    pub(super) fn put(&mut self, given: Given) {
        self.verdicts.push_back(given);
    }

    /// Returns whether the store refused to set it aside before.
    pub(super) fn leave(&mut self, row: RowKey) -> bool {
        self.left.insert(row);
        self.left_before.remove(&row)
    }

    /// A fetch has returned the message as due, so it need not be set aside.
    pub(super) fn is_due(&mut self, row: RowKey) {
        self.left.remove(&row);
        self.left_before.remove(&row);
    }

    /// Whether the store refuses to set the message aside.
    pub(super) fn leaves(&self, row: RowKey) -> bool {
        self.left.contains(&row)
    }

    /// Whether a refused verdict closes this lane.
    pub(super) fn closes(&self, key: Key) -> bool {
        self.verdicts.iter().any(|given| given.closes == Some(key))
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = RowKey> {
        self.verdicts.iter().map(|given| given.settlement.key())
    }

    /// Number of verdicts that are kept.
    pub(super) fn kept(&self) -> usize {
        self.verdicts.len()
    }

    /// Number of messages concerned: of kept verdicts, and those that cannot be set aside.
    pub(super) fn count(&self) -> usize {
        self.verdicts.len() + self.left.len()
    }

    /// Counts one more try, and returns the number of tries.
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

    /// Removes and returns the verdict to try again. Messages that could not be set aside may be set aside again.
    pub(super) fn next(&mut self) -> Option<Given> {
        self.left_before.extend(self.left.drain());
        self.retry_at = None;
        self.verdicts.pop_front()
    }

    /// Removes and returns all verdicts: the store took one of them, so it may take the others as well.
    pub(super) fn take_all(&mut self) -> VecDeque<Given> {
        mem::take(self).verdicts
    }

    /// Removes and returns the verdicts for which `is_taken` holds. Messages that could not be set aside may be set aside again.
    pub(super) fn take_if(&mut self, is_taken: impl Fn(&Given) -> bool) -> Vec<Given> {
        self.left.clear();
        self.left_before.clear();
        let all = mem::take(&mut self.verdicts).into_iter();
        let (taken, kept): (Vec<Given>, Vec<Given>) = all.partition(|given| is_taken(given));
        self.verdicts = kept.into();
        taken
    }
}
