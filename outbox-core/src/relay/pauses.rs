//! The pauses that a relay has read.
//!
//! Invariant: if nothing is paused, a message costs one check of an empty set.

use std::collections::HashSet;

use crate::message::Aggregate;
use crate::store::Pause;

#[derive(Debug, Default)]
pub(super) struct Pauses {
    known: Vec<Pause>,
    all: bool,
    types: HashSet<String>,
}

impl Pauses {
    pub(super) fn new(read: Vec<Pause>) -> Self {
        let known: Vec<Pause> = read.into_iter().filter(Pause::stands).collect();
        Self {
            all: known.iter().any(|pause| pause.aggregate_type.is_none()),
            types: known
                .iter()
                .filter_map(|pause| pause.aggregate_type.clone())
                .collect(),
            known,
        }
    }

    pub(super) fn all(&self) -> bool {
        self.all
    }

    pub(super) fn holds(&self, aggregate: &Aggregate) -> bool {
        !self.types.is_empty() && self.types.contains(&aggregate.aggregate_type)
    }

    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    pub(super) fn reasons(&self) -> Vec<String> {
        let reason = |pause: &Pause| {
            format!(
                "publishing of {} is paused by {}: {}",
                pause.scope(),
                pause.by,
                pause.reason
            )
        };
        self.known.iter().map(reason).collect()
    }

    pub(super) fn differs(&self, other: &Self) -> bool {
        self.all != other.all || self.types != other.types
    }
}
