//! What the two halves of a log relay tell each other and other relays.
//!
//! The relay of the log has no row in the table of relays, so the relay of the table announces both. Invariant: what is announced is never better than either half,
//! except that a half that had nothing to publish counts as fit while the other one succeeds. It is pure but for a lock, and does no I/O.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::store::{Fitness, RelayTrouble};

/// What the relay of the log has told of itself.
type Told = Option<(Fitness, Option<RelayTrouble>)>;

/// The fitness and the trouble of the relay of the log, and whether the relay of the table agrees with the other relays on the destination. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogFitness {
    /// `None` before the relay of the log has told its fitness, and while it does not read the log and so has nothing to show.
    log: Arc<Mutex<Told>>,
    agreed: Arc<watch::Sender<bool>>,
}

impl LogFitness {
    /// The relay of the log tells its fitness; `None` while it stands by, or would try without the log.
    pub(crate) fn tell(&self, log: Option<(Fitness, Option<RelayTrouble>)>) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = log;
    }

    /// What the relay of the table announces.
    pub(super) fn together(
        &self,
        table: Fitness,
        trouble: Option<RelayTrouble>,
    ) -> (Fitness, Option<RelayTrouble>) {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (log, of_log) = log.map_or((None, None), |(log, of_log)| (Some(log), of_log));
        let both = [Some(table), log];
        let fitness = [Fitness::Ailing, Fitness::Trying, Fitness::Fit]
            .into_iter()
            .find(|fitness| both.contains(&Some(*fitness)))
            .unwrap_or(Fitness::Unproven);
        (fitness, trouble.or(of_log))
    }

    /// The relay of the table agrees with the other relays: the log may be read.
    pub(super) fn agreed(&self) {
        self.agreed
            .send_if_modified(|agreed| !std::mem::replace(agreed, true));
    }

    /// Waits until the relay of the table agrees with the other relays, for at most `bound`. Cancel-safe.
    pub(crate) async fn agrees_within(&self, bound: Duration) -> bool {
        let mut agreed = self.agreed.subscribe();
        let agreed = agreed.wait_for(|agreed| *agreed);
        matches!(timeout(bound, agreed).await, Ok(Ok(_)))
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
            assert_eq!(log.together(own, None).0, own, "the log has told nothing yet");
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
            log.tell(Some((told, None)));
            assert_eq!(log.together(table, None).0, expected, "{table:?} {told:?}");
        }
        log.tell(None);
        assert_eq!(log.together(Fit, None).0, Fit, "it stands by");
    }
}
