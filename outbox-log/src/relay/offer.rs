//! When a relay that cannot publish offers the log to other relays.
//!
//! The database reports only whether a log is read, and lists no standby relays. So the reader ends
//! its reading and stays away long enough for standby relays to detect the free log. If no relay
//! takes the log, the reader resumes, and the next offer comes later. No I/O.
//!
//! Invariants: only a relay that was unhealthy, and has not published since, stays away from the
//! log, at most for [`AWAY`] or a lease. The relay resumes only after [`AWAY`], even to try
//! publishing.

use std::time::Duration;

use outbox_core::RelayHealth;
use tokio::time::Instant;

/// Time without a reading. Standby relays check the log each second.
const AWAY: Duration = Duration::from_secs(5);
const OFFER_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Offer {
    is_unhealthy: bool,
    begins: bool,
    away_until: Option<Instant>,
    looks_at: Option<Instant>,
    not_before: Option<Instant>,
    offers: u32,
    patience: Duration,
}

impl Offer {
    /// Returns true if the log is now for other relays. `patience`: how long other relays wait for
    /// a dead relay.
    pub(super) fn announced(&mut self, health: RelayHealth, reads: bool, patience: Duration) -> bool {
        if health != RelayHealth::Unhealthy {
            let offers = match health {
                RelayHealth::Healthy => 0,
                _ => self.offers,
            };
            let offered = offers > 0;
            *self = Self {
                offers,
                not_before: self.not_before.filter(|_| offered),
                // Without this pause, the relay would take the log back before standby relays check
                // the log.
                away_until: self.away_until.filter(|_| offered),
                ..Self::default()
            };
            return false;
        }
        (self.is_unhealthy, self.patience) = (true, patience);
        if self.begins && !reads {
            self.closed();
        }
        let may_offer = self.not_before.is_none_or(|at| at <= Instant::now());
        self.begins |= reads && may_offer;
        self.begins || self.is_away()
    }

    pub(super) fn closed(&mut self) {
        if !std::mem::take(&mut self.begins) {
            return;
        }
        tracing::warn!("this relay cannot publish and offers the log to standby relays");
        let end = Instant::now() + AWAY;
        let patience = self.patience;
        let pause = patience.saturating_mul(2_u32.saturating_pow(self.offers));
        self.away_until = Some(end);
        self.not_before = Some(end + pause.min(OFFER_MAX.max(patience)));
        self.offers = self.offers.saturating_add(1);
    }

    /// Delays the next check of an unhealthy relay, so that healthy relays take the log first.
    pub(super) fn taken(&mut self) {
        if self.is_unhealthy {
            self.looks_at = Some(Instant::now() + self.patience);
        }
    }

    pub(super) fn is_away(&self) -> bool {
        let now = Instant::now();
        [self.away_until, self.looks_at]
            .into_iter()
            .flatten()
            .any(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn offers_become_rare_and_end_with_the_first_success() {
        let mut offer = Offer::default();
        let mut offered_at = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2 * 3600) {
            let reads = !offer.is_away();
            if offer.announced(RelayHealth::Unhealthy, reads, PATIENCE) && reads {
                offer.closed();
                offered_at.push(begun.elapsed().as_secs());
                assert!(offer.is_away());
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(offered_at[..5], [0, 20, 55, 120, 245]);
        assert!(offered_at.len() < 20, "{offered_at:?}");
        assert!(!offer.announced(RelayHealth::Healthy, true, PATIENCE));
        assert!(
            offer.announced(RelayHealth::Unhealthy, true, PATIENCE),
            "a success resets the pauses"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn trial_waits_for_the_offer_and_keeps_the_pauses() {
        let mut offer = Offer::default();
        assert!(offer.announced(RelayHealth::Unhealthy, true, PATIENCE));
        offer.closed();
        for health in [RelayHealth::Recovering, RelayHealth::Unknown] {
            assert!(!offer.announced(health, false, PATIENCE));
            assert!(offer.is_away(), "standby relays have not checked yet: {health:?}");
        }
        tokio::time::advance(AWAY).await;
        assert!(!offer.is_away());
        assert!(!offer.announced(RelayHealth::Unhealthy, true, PATIENCE));
        tokio::time::advance(PATIENCE).await;
        assert!(offer.announced(RelayHealth::Unhealthy, true, PATIENCE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_ends_the_offer() {
        let mut offer = Offer::default();
        assert!(offer.announced(RelayHealth::Unhealthy, true, PATIENCE));
        offer.closed();
        assert!(!offer.announced(RelayHealth::Healthy, false, PATIENCE) && !offer.is_away());
    }

    #[tokio::test(start_paused = true)]
    async fn trial_checks_that_the_log_is_free() {
        let mut offer = Offer::default();
        offer.announced(RelayHealth::Unhealthy, false, PATIENCE);
        offer.taken();
        assert!(offer.is_away());
        assert!(!offer.announced(RelayHealth::Recovering, false, PATIENCE) && !offer.is_away());
    }

    /// If the relay's leases have expired, it has no partitions to release. The end of its reading
    /// still completes the offer of the log to standby relays.
    #[tokio::test(start_paused = true)]
    async fn reading_that_ends_during_an_offer_counts_as_left() {
        let mut offer = Offer::default();
        assert!(offer.announced(RelayHealth::Unhealthy, true, PATIENCE));
        assert!(offer.announced(RelayHealth::Unhealthy, false, PATIENCE));
        tokio::time::advance(AWAY).await;
        assert!(!offer.announced(RelayHealth::Unhealthy, false, PATIENCE));
    }
}
