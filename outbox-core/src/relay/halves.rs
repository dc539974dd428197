//! What the two halves of a log relay tell each other and other relays.
//!
//! The relay of the log has no row in the table of relays, so the relay of the table announces both. Invariant: what is announced is never better than either half,
//! except that a half that had nothing to publish counts as fit while the other one succeeds. It is pure but for a lock, and does no I/O.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::store::Fitness;

/// The fitness of the relay of the log; `None` before it has told one, and while it does not read the log and so has nothing to show. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogFitness(Arc<Mutex<Option<Fitness>>>);

impl LogFitness {
    /// The relay of the log tells its fitness; `None` while it stands by, or would try without the log.
    pub(crate) fn tell(&self, fitness: Option<Fitness>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fitness;
    }

    /// What the relay of the table announces.
    pub(super) fn together(&self, table: Fitness) -> Fitness {
        let log = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let both = [Some(table), log];
        [Fitness::Ailing, Fitness::Trying, Fitness::Fit]
            .into_iter()
            .find(|fitness| both.contains(&Some(*fitness)))
            .unwrap_or(Fitness::Unproven)
    }
}

/// How often a reading of the log has broken off. Another relay may read from then on. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogBreaks(Arc<AtomicU64>);

impl LogBreaks {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_not_better_than_either_half() {
        use Fitness::{Ailing, Fit, Trying, Unproven};
        let log = LogFitness::default();
        for own in Fitness::ALL {
            assert_eq!(log.together(own), own, "the log has told nothing yet");
        }
        for (table, told, expected) in [
            (Fit, Ailing, Ailing),
            (Ailing, Fit, Ailing),
            (Unproven, Ailing, Ailing),
            (Fit, Trying, Trying),
            (Trying, Ailing, Ailing),
            (Unproven, Fit, Fit),
            (Fit, Unproven, Fit),
            (Unproven, Unproven, Unproven),
        ] {
            log.tell(Some(told));
            assert_eq!(log.together(table), expected, "{table:?} {told:?}");
        }
        log.tell(None);
        assert_eq!(log.together(Fit), Fit, "it stands by");
    }
}
