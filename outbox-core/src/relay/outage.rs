//! Says of an outage that it began, and that it ended, and nothing in between.
//!
//! A relay tries again and again while a server is away. Each failure would be a line in the log. Invariant: an outage is told once, and once more if what
//! passes by itself turns into what somebody has to repair. Each failure stays visible at level debug, in the metrics and in the health.

use std::time::Duration;

use tokio::time::Instant;

/// An outage of one server, or none.
#[derive(Debug, Default)]
pub(super) struct Outage {
    began: Option<Instant>,
    /// It was told that somebody has to act.
    needs_somebody: bool,
}

impl Outage {
    /// Something failed; returns whether that is to be told.
    pub(super) fn failed(&mut self, needs_somebody: bool) -> bool {
        let is_news = self.began.is_none() || (needs_somebody && !self.needs_somebody);
        self.began.get_or_insert_with(Instant::now);
        self.needs_somebody |= needs_somebody;
        is_news
    }

    /// Everything works; returns how long an outage took that ends with this.
    pub(super) fn ended(&mut self) -> Option<Duration> {
        let began = self.began.take()?;
        self.needs_somebody = false;
        Some(began.elapsed())
    }
}

/// Logs what is news as a warning, and its repetitions at level debug.
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
    async fn an_outage_is_told_once_and_its_end_too() {
        let mut outage = Outage::default();
        assert_eq!(outage.ended(), None);
        assert!(outage.failed(false));
        assert!((0..100).all(|_| !outage.failed(false)));
        assert!(outage.failed(true), "now somebody has to act");
        assert!(!outage.failed(true) && !outage.failed(false));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(outage.ended(), Some(Duration::from_secs(7)));
        assert_eq!(outage.ended(), None);
        assert!(outage.failed(false), "the next one is news");
    }
}
