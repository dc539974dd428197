//! When a relay that cannot publish leaves the log to others.
//!
//! The database tells only whether a log is read, so a reader does not know whether another relay
//! stands by. It offers the log therefore: it ends its reading, and stays away for a moment that is
//! longer than those that stand by need to notice. If nobody took the log, it reads on, and waits
//! longer with each offer before the next. So a log that is alone with its broker's outage is soon
//! left where it is. It is pure but for the clock, and does no I/O.
//!
//! Invariants: only a relay that was ailing, and has not published since, stays away, and never for
//! longer than [`AWAY`] or a lease. What it has offered it takes back only after [`AWAY`], even to
//! try whether it can publish again. Not here: when a relay is ailing, see `outbox-core`.

use std::time::Duration;

use outbox_core::Fitness;
use tokio::time::Instant;

/// How long the reader stays away. Relays that stand by look each second.
const AWAY: Duration = Duration::from_secs(5);
/// The longest time between two offers.
const OFFER_MAX: Duration = Duration::from_secs(600);

/// What this relay leaves to others.
#[derive(Debug, Default)]
pub(super) struct Offer {
    /// What this relay last told of itself.
    is_ailing: bool,
    /// The reading is being ended.
    begins: bool,
    /// Until then the log is offered to others.
    away_until: Option<Instant>,
    /// Another relay reads, and until then this one does not look whether it still does.
    looks_at: Option<Instant>,
    /// No offer before this.
    not_before: Option<Instant>,
    /// Offers since this relay was fit.
    offers: u32,
    /// How long others wait for a relay that died.
    patience: Duration,
}

impl Offer {
    /// The relay tells its fitness. Returns true if the log is for others now. `patience` is how
    /// long others wait for a relay that died.
    pub(super) fn announced(&mut self, fitness: Fitness, reads: bool, patience: Duration) -> bool {
        if fitness != Fitness::Ailing {
            let offers = match fitness {
                Fitness::Fit => 0,
                _ => self.offers,
            };
            let offered = offers > 0;
            *self = Self {
                offers,
                not_before: self.not_before.filter(|_| offered),
                // A trial that began at once would take the log back before those that stand by
                // look.
                away_until: self.away_until.filter(|_| offered),
                ..Self::default()
            };
            return false;
        }
        (self.is_ailing, self.patience) = (true, patience);
        if self.begins && !reads {
            // The reading ended by itself.
            self.closed();
        }
        let may_offer = self.not_before.is_none_or(|at| at <= Instant::now());
        self.begins |= reads && may_offer;
        self.begins || self.is_away()
    }

    /// The reading has ended.
    pub(super) fn closed(&mut self) {
        if !std::mem::take(&mut self.begins) {
            return;
        }
        tracing::warn!(
            "this relay cannot publish; for a moment it leaves the log to any relay that stands by"
        );
        let end = Instant::now() + AWAY;
        let patience = self.patience;
        let pause = patience.saturating_mul(2_u32.saturating_pow(self.offers));
        self.away_until = Some(end);
        self.not_before = Some(end + pause.min(OFFER_MAX.max(patience)));
        self.offers = self.offers.saturating_add(1);
    }

    /// Another relay reads. While this one is ailing, it looks again only after a while, so that
    /// the log is first taken by relays that are not.
    pub(super) fn taken(&mut self) {
        if self.is_ailing {
            self.looks_at = Some(Instant::now() + self.patience);
        }
    }

    /// Whether the log is for others now.
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

    /// While nobody else takes the log, the reader leaves it ever more seldom.
    #[tokio::test(start_paused = true)]
    async fn offers_become_rare_and_end_with_the_first_success() {
        let mut offer = Offer::default();
        let mut offered_at = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2 * 3600) {
            let reads = !offer.is_away();
            if offer.announced(Fitness::Ailing, reads, PATIENCE) && reads {
                offer.closed();
                offered_at.push(begun.elapsed().as_secs());
                assert!(offer.is_away());
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(offered_at[..5], [0, 20, 55, 120, 245]);
        assert!(offered_at.len() < 20, "{offered_at:?}");
        assert!(!offer.announced(Fitness::Fit, true, PATIENCE));
        assert!(offer.announced(Fitness::Ailing, true, PATIENCE), "at once again");
    }

    /// One trial that fails is no reason to begin anew with short pauses.
    #[tokio::test(start_paused = true)]
    async fn a_trial_waits_for_the_end_of_the_offer_and_does_not_end_the_pauses() {
        let mut offer = Offer::default();
        assert!(offer.announced(Fitness::Ailing, true, PATIENCE));
        offer.closed();
        for fitness in [Fitness::Trying, Fitness::Unproven] {
            assert!(!offer.announced(fitness, false, PATIENCE));
            assert!(offer.is_away(), "others have had no time to look: {fitness:?}");
        }
        tokio::time::advance(AWAY).await;
        assert!(!offer.is_away());
        assert!(!offer.announced(Fitness::Ailing, true, PATIENCE));
        tokio::time::advance(PATIENCE).await;
        assert!(offer.announced(Fitness::Ailing, true, PATIENCE));
    }

    /// Whoever can publish needs no other relay.
    #[tokio::test(start_paused = true)]
    async fn a_success_ends_the_offer() {
        let mut offer = Offer::default();
        assert!(offer.announced(Fitness::Ailing, true, PATIENCE));
        offer.closed();
        assert!(!offer.announced(Fitness::Fit, false, PATIENCE) && !offer.is_away());
    }

    /// A relay that tries again looks at once whether the other one still reads.
    #[tokio::test(start_paused = true)]
    async fn a_trial_looks_whether_the_log_is_free() {
        let mut offer = Offer::default();
        offer.announced(Fitness::Ailing, false, PATIENCE);
        offer.taken();
        assert!(offer.is_away());
        assert!(!offer.announced(Fitness::Trying, false, PATIENCE) && !offer.is_away());
    }

    /// The engine is told that the leases are lost, and releases nothing.
    #[tokio::test(start_paused = true)]
    async fn a_reading_that_ends_by_itself_during_an_offer_counts_as_left() {
        let mut offer = Offer::default();
        assert!(offer.announced(Fitness::Ailing, true, PATIENCE));
        assert!(offer.announced(Fitness::Ailing, false, PATIENCE));
        tokio::time::advance(AWAY).await;
        assert!(!offer.announced(Fitness::Ailing, false, PATIENCE));
    }
}
