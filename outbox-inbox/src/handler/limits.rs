//! How much of one handler runs in a process: plain data.
//!
//! Not here: what the runtime does with it ([`crate::runtime`]).

use std::ops::RangeInclusive;
use std::time::Duration;

use super::Strategy;

/// Runs at a time.
const CONCURRENCY: RangeInclusive<u32> = 1..=1_024;
/// Messages in a time.
const MESSAGES: RangeInclusive<u32> = 1..=1_000_000;
const PER: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);

/// Limits of one handler, for [`Inbox::with_limits`](crate::Inbox::with_limits): for the sake of a system that the handler calls, for example. They hold in
/// each process by itself: three processes run three times as much.
///
/// Messages beyond a limit wait, with those behind them in their aggregates; messages of other handlers of the consumer go on. Waiting uses no attempts, and
/// what does not fit into memory meanwhile waits at the broker. With order `strict` everything waits for the first message. A backlog beyond what the broker
/// delivers without an answer (`ack_pending_max`) keeps the consumer's other handlers from new messages: give a handler with a low rate a consumer
/// of its own. Strategy `sequence` takes limits only with `gap = "0s"`, because another process would take what waits for a gap.
///
/// ```
/// use std::time::Duration;
/// use outbox_inbox::HandlerLimits;
///
/// // Four at a time, and a hundred a second.
/// let limits = HandlerLimits::new().concurrency(4).rate(100, Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HandlerLimits {
    /// Runs at a time, 1 to 1,024; a batch is one run. Default: as many as [`InboxConfig::concurrency`](crate::InboxConfig#structfield.concurrency) allows.
    pub concurrency: Option<u32>,
    /// Messages (1 to 1,000,000) in a time (1 ms to 1 day). Default: no limit.
    pub rate: Option<(u32, Duration)>,
}

impl HandlerLimits {
    /// No limits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            concurrency: None,
            rate: None,
        }
    }

    /// At most `runs` at a time.
    #[must_use]
    pub const fn concurrency(mut self, runs: u32) -> Self {
        self.concurrency = Some(runs);
        self
    }

    /// At most `messages` begin in any time of this length, evenly: after a pause no more than 50 ms worth of them begin at once. A batch counts with all its
    /// messages, and once only if they have to run again one by one; so do messages that turn out to be duplicates.
    #[must_use]
    pub const fn rate(mut self, messages: u32, per: Duration) -> Self {
        self.rate = Some((messages, per));
        self
    }

    /// The time between two messages.
    pub(crate) fn interval(&self) -> Duration {
        self.rate
            .map_or(Duration::ZERO, |(messages, per)| per / messages.max(1))
    }

    /// What is out of its range.
    pub(crate) fn problem(&self, strategy: Strategy) -> Option<String> {
        // Another process would pass a message that waits for a limit here.
        if let Strategy::Sequence { gap } = strategy
            && gap != Some(Duration::ZERO)
        {
            return Some(
                "strategy `sequence` takes a message that waits for a limit for a gap; use another strategy, or `gap = \"0s\"`"
                    .to_owned(),
            );
        }
        if self.concurrency.is_some_and(|runs| !CONCURRENCY.contains(&runs)) {
            return Some("`concurrency` must be 1 to 1024".to_owned());
        }
        let (messages, per) = self.rate?;
        (!MESSAGES.contains(&messages) || !PER.contains(&per))
            .then(|| "`rate` must be 1 to 1000000 messages in 1 ms to 1 day".to_owned())
    }
}
