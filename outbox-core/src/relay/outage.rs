//! Logs the beginning and the end of an outage instead of every failed retry.
//!
//! Invariant: an outage is logged once, again when it needs an operator, and at most every 30 s
//! when its reason changes. Each failure stays visible at level debug, in metrics and in health.

use std::time::Duration;

use tokio::time::Instant;

use crate::health::Activity;

const CHANGED_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Outage {
    began: Option<Instant>,
    needs_somebody: bool,
    told: Option<(Instant, String)>,
}

impl Outage {
    /// Returns whether to log the failure. `reason` must not contain values of single messages.
    pub(super) fn failed(&mut self, needs_somebody: bool, reason: &str) -> bool {
        let is_changed = |(at, told): &(Instant, String)| told != reason && at.elapsed() >= CHANGED_AFTER;
        let is_news = self.began.is_none()
            || (needs_somebody && !self.needs_somebody)
            || self.told.as_ref().is_some_and(is_changed);
        if is_news || self.told.is_none() {
            self.told = Some((Instant::now(), reason.to_owned()));
        }
        self.began.get_or_insert_with(Instant::now);
        self.needs_somebody |= needs_somebody;
        is_news
    }

    pub(super) fn was_told(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    pub(super) fn ended(&mut self) -> Option<Duration> {
        let began = self.began.take()?;
        (self.needs_somebody, self.told) = (false, None);
        Some(began.elapsed())
    }
}

/// Activities whose failure makes a relay hand over. A relay that cannot renew its leases has
/// nothing to hand over.
pub(super) const WORK: [Activity; 3] = [Activity::Fetching, Activity::FetchingWaiting, Activity::Settling];

#[derive(Debug, Default)]
pub(super) struct StoreOutage {
    failures: [u32; Activity::COUNT],
    failing_since: [Option<Instant>; Activity::COUNT],
    pub(super) outage: Outage,
    /// Set after a failed settlement: no message is sent until the pending verdicts are recorded.
    pub(super) settle_after: Option<Instant>,
}

impl StoreOutage {
    pub(super) fn failed(&mut self, activity: Activity) -> u32 {
        self.failing_since[activity as usize].get_or_insert_with(Instant::now);
        let failures = &mut self.failures[activity as usize];
        *failures = failures.saturating_add(1);
        *failures
    }

    pub(super) fn answered(&mut self, activity: Activity) -> Option<Duration> {
        self.failures[activity as usize] = 0;
        self.failing_since[activity as usize] = None;
        let all_healthy = self.failing_since.iter().all(Option::is_none);
        all_healthy.then(|| self.outage.ended()).flatten()
    }

    pub(super) fn is_failing(&self, activity: Activity) -> bool {
        self.failing_since[activity as usize].is_some()
    }

    pub(super) fn failing_since(&self) -> Option<Instant> {
        let since = WORK.map(|activity| self.failing_since[activity as usize]);
        since.into_iter().flatten().min()
    }

    pub(super) fn forget(&mut self) {
        self.failing_since = Default::default();
    }

    /// Settling no longer counts as failing, because no verdict is left. Only the next settlement
    /// shows whether settling still fails.
    pub(super) fn forget_settling(&mut self) {
        self.failing_since[Activity::Settling as usize] = None;
        self.settle_after = self.settle_after.filter(|after| Instant::now() < *after);
    }
}

macro_rules! tell_outage {
    ($is_news:expr, $($what:tt)*) => {
        if $is_news {
            tracing::warn!($($what)*);
        } else {
            tracing::debug!($($what)*);
        }
    };
}
pub(super) use tell_outage;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn outage_start_and_end_are_logged_once() {
        let mut outage = Outage::default();
        assert_eq!(outage.ended(), None);
        assert!(outage.failed(false, "refused"));
        assert!((0..100).all(|_| !outage.failed(false, "reset")));
        assert!(outage.failed(true, "denied"), "an operator must act");
        assert!(!outage.failed(true, "denied") && !outage.failed(false, "refused"));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(outage.ended(), Some(Duration::from_secs(7)));
        assert_eq!(outage.ended(), None);
        assert!(outage.failed(false, "denied"), "the next outage is logged");
    }

    #[tokio::test(start_paused = true)]
    async fn changed_outage_reason_is_logged_after_a_delay() {
        let mut outage = Outage::default();
        assert!(outage.failed(false, "terminated"));
        tokio::time::advance(CHANGED_AFTER).await;
        assert!(!outage.failed(false, "terminated"));
        assert!(outage.failed(false, "no such login"));
        assert!(!outage.failed(false, "terminated"));
    }

    #[tokio::test(start_paused = true)]
    async fn store_outage_ends_with_the_last_failing_activity() {
        let mut store = StoreOutage::default();
        assert!(store.outage.failed(false, "refused"));
        assert_eq!(store.failed(Activity::Fetching), 1);
        assert_eq!(store.failed(Activity::Fetching), 2);
        store.failed(Activity::Keeping);
        assert_eq!(store.answered(Activity::Fetching), None);
        assert_eq!(store.failing_since(), None, "renewals do not count");
        assert!(store.answered(Activity::Keeping).is_some());
        assert_eq!(store.failed(Activity::Fetching), 1);
    }
}
