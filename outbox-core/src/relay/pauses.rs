//! The pauses that a relay knows of.
//!
//! Invariant: without a pause, a message costs one look at an empty set. Not here: when they are read, see [`ownership`](super::ownership); what is set aside,
//! see `engine::publish`.

use std::collections::HashSet;

use crate::message::Aggregate;
use crate::store::Pause;

/// The pauses that stood when they were read last.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    known: Vec<Pause>,
    all: bool,
    types: HashSet<String>,
}

impl Pauses {
    /// Those of these that stand.
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

    /// Whether nothing at all may be sent.
    pub(super) fn all(&self) -> bool {
        self.all
    }

    /// Whether messages of this aggregate are to be set aside.
    pub(super) fn holds(&self, aggregate: &Aggregate) -> bool {
        !self.types.is_empty() && self.types.contains(&aggregate.aggregate_type)
    }

    /// Number of pauses.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// A sentence for each.
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

    /// Whether other messages are held than before.
    pub(super) fn differs(&self, other: &Self) -> bool {
        self.all != other.all || self.types != other.types
    }
}
