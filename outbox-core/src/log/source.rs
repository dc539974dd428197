//! Connects two relays of one process: the table relay, and the relay of a second source, such as
//! the transaction log. Both share a publisher and one [`SecondSource`]. The source relay has its
//! own [`OutboxStore`](crate::OutboxStore), which returns the messages of the log.
//!
//! # Contract
//!
//! * The table relay registers both relays as one, with the worse health of the two.
//! * The table relay checks the destinations of other relays.
//! * The table relay retries, blocks, pauses and dead-letters messages.
//! * The table relay reports the gauges of leases, pauses and backlog.
//! * The source relay has no registration; its store calls [`SecondSource::announce`].
//! * The source relay gets no lease before [`SecondSource::agrees_within`] returns true.
//! * The source relay settles a message as published, or with [`Verdict::Waits`], which moves the
//!   message to the table.
//! * The source relay reports the counters of publishes and no other metric.
//! * After [`SecondSource::interrupt`] the source relay publishes nothing until a renewal proves
//!   its leases.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::store::{RelayHealth, RelayMode, RelayTrouble, Verdict};

/// State shared by both relays and all clones.
#[derive(Debug, Clone, Default)]
pub struct SecondSource(Arc<State>);

#[derive(Debug, Default)]
struct State {
    announced: Mutex<Option<(RelayHealth, Option<RelayTrouble>)>>,
    agreed: watch::Sender<bool>,
    interruptions: AtomicU64,
}

impl SecondSource {
    /// Announces the health of the source relay; `None` if it does not read the source.
    pub fn announce(&self, announced: Option<(RelayHealth, Option<RelayTrouble>)>) {
        *self.0.announced.lock().unwrap_or_else(PoisonError::into_inner) = announced;
    }

    /// Waits at most `bound` until the table relay agrees with other relays on the destination.
    /// Cancel-safe.
    pub async fn agrees_within(&self, bound: Duration) -> bool {
        let mut agreed = self.0.agreed.subscribe();
        let agreed = agreed.wait_for(|agreed| *agreed);
        matches!(timeout(bound, agreed).await, Ok(Ok(_)))
    }

    /// Reports an interrupted reading: from now on, another relay may read the source.
    pub fn interrupt(&self) {
        self.0.interruptions.fetch_add(1, Ordering::AcqRel);
    }

    fn together(
        &self,
        table: RelayHealth,
        trouble: Option<RelayTrouble>,
    ) -> (RelayHealth, Option<RelayTrouble>) {
        let announced = self
            .0
            .announced
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let (source, of_source) = announced.unzip();
        let both = [Some(table), source];
        let health = [
            RelayHealth::Unhealthy,
            RelayHealth::Recovering,
            RelayHealth::Healthy,
        ]
        .into_iter()
        .find(|health| both.contains(&Some(*health)))
        .unwrap_or(RelayHealth::Unknown);
        (health, trouble.or(of_source.flatten()))
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Part {
    #[default]
    Whole,
    Table(SecondSource),
    Source(SecondSource),
}

impl Part {
    pub(crate) fn mode(&self) -> RelayMode {
        match self {
            Self::Whole => RelayMode::Polling,
            Self::Table(_) | Self::Source(_) => RelayMode::Log,
        }
    }

    pub(crate) fn has_table(&self) -> bool {
        !matches!(self, Self::Source(_))
    }

    pub(crate) fn announced(
        &self,
        health: RelayHealth,
        trouble: Option<RelayTrouble>,
    ) -> (RelayHealth, Option<RelayTrouble>) {
        match self {
            Self::Table(source) => source.together(health, trouble),
            Self::Whole | Self::Source(_) => (health, trouble),
        }
    }

    pub(crate) fn agree(&self) {
        if let Self::Table(source) = self {
            let agreed = &source.0.agreed;
            agreed.send_if_modified(|agreed| !mem::replace(agreed, true));
        }
    }

    pub(crate) fn interruptions(&self) -> u64 {
        match self {
            Self::Source(source) => source.0.interruptions.load(Ordering::Acquire),
            Self::Whole | Self::Table(_) => 0,
        }
    }

    pub(crate) fn verdict(&self, verdict: Verdict) -> Verdict {
        match self {
            Self::Source(_) => Verdict::Waits,
            Self::Whole | Self::Table(_) => verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announced_health_is_not_better_than_either_relay() {
        use RelayHealth::{Healthy, Recovering, Unhealthy, Unknown};
        let source = SecondSource::default();
        let table = Part::Table(source.clone());
        for own in RelayHealth::ALL {
            assert_eq!(
                table.announced(own, None).0,
                own,
                "the source has announced nothing"
            );
        }
        for (own, of_source, expected) in [
            (Healthy, Unhealthy, Unhealthy),
            (Unhealthy, Healthy, Unhealthy),
            (Unknown, Unhealthy, Unhealthy),
            (Healthy, Recovering, Recovering),
            (Recovering, Unhealthy, Unhealthy),
            (Unknown, Healthy, Healthy),
            (Healthy, Unknown, Healthy),
            (Unknown, Unknown, Unknown),
        ] {
            source.announce(Some((of_source, None)));
            assert_eq!(table.announced(own, None).0, expected, "{own:?} {of_source:?}");
        }
        source.announce(None);
        assert_eq!(
            table.announced(Healthy, None).0,
            Healthy,
            "the source is not read"
        );
    }
}
