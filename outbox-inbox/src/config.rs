//! Settings of an inbox, each with its bound, default and trade-off.

use std::time::Duration;

use outbox_core::retry::Backoff;

use crate::start::Problem;

/// What happens to a delivery that is no message of an outbox: headers missing or malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is kept with its raw bytes among the dead letters.
    #[default]
    DeadLetter,
    /// It is acknowledged and logged. For streams that carry other traffic as well.
    Ignore,
    /// It is tried again, at the longest delay of [`InboxConfig::backoff`], until a newer program can read it. Uses no attempts.
    Retry,
}

/// What happens to a message whose event type is handled, but not in this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum UnknownVersion {
    /// It becomes a dead letter.
    #[default]
    DeadLetter,
    /// It goes back to the broker, under the conditions of [`UnknownEvent::Retry`], until a newer program handles it. So later messages of its aggregate
    /// may be handled before it, except with the order `strict` and the strategy `sequence`. For rolling deployments that start with the producer.
    Retry,
    /// It is acknowledged and logged. For consumers that do not need what other versions say.
    Ignore,
}

/// What happens to a message whose event type has no handler in this process, although somebody has asked for it under the consumer's name: a newer version
/// of the program that runs beside this one, or ran before it; or another program. (What nobody has asked for is skipped: some brokers deliver
/// more than that.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum UnknownEvent {
    /// It goes back to the broker and is delivered again, to this process or another one, until one handles it: at first after [`InboxConfig::backoff`]'s
    /// shortest delay, at last after its longest. It uses no attempts and holds up no other message, with two exceptions: with the order
    /// `strict` everything waits for it, with the strategy `sequence` the later messages of its aggregate do.
    #[default]
    Retry,
    /// It is acknowledged, counted, and logged once. For event types that nobody is going to handle any more.
    Skip,
    /// It becomes a dead letter.
    DeadLetter,
}

/// Least room for payloads and headers.
const BUFFER_BYTES_MIN: usize = 64 * 1024;

/// Settings of an inbox. `InboxConfig::default()` is right for most services.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxConfig {
    /// Handlers that run at a time, per consumer; each holds a database connection. Messages of one aggregate never run at
    /// the same time. 1 to 1,024, default 8.
    pub concurrency: usize,
    /// Deliveries in memory that run or are about to, and those behind them in their aggregates, per consumer; fewer if they could not be handled before half
    /// of `ack_wait` is over, and twice the largest batch if that is more. Waiting ones are kept alive with progress acknowledgements. At least
    /// `concurrency`, at most 10,000, default 256.
    pub in_flight_max: usize,
    /// Deliveries in memory, beside those of `in_flight_max` and per consumer, that wait because a message of their aggregate failed or is missing. Beyond it
    /// those that cost least time go back to the broker, and are not overtaken. They return after a second at the earliest, also if nothing is in the way
    /// of their aggregate any longer: a healthy aggregate whose later messages went back stands still for that second. More room lets hot aggregates go on
    /// at once after a failure. 1 to 100,000, default 4,096.
    pub blocked_max: usize,
    /// Bytes of payloads and headers in memory, per consumer. Nothing is received beyond it, and deliveries that wait for a failed one go back to the broker,
    /// under the conditions of `blocked_max`. One delivery is always taken, however large. Dead letters that are tried again count too: each look takes as many
    /// of them as there is room for then, and one at least, so that together with what is received meanwhile it can be up to twice as much. At least 64 KiB,
    /// default 16 MiB.
    pub buffer_bytes: usize,
    /// Deliveries without an answer at a time, per consumer, over all processes: `max_ack_pending` on NATS. Those that wait for a failed one of
    /// their aggregate count too, also after they were given back for want of room: at this number of them the broker sends nothing new. At least
    /// `in_flight_max`, at most 1,000,000, default 100,000. Consumers of order `strict` have 1.
    pub ack_pending_max: usize,
    /// Time after which the broker delivers an unanswered message again: how long a crashed process delays its messages.
    /// 1 s to 1 h, default 30 s.
    pub ack_wait: Duration,
    /// Longest run of a handler; then it is cancelled, rolled back and counted as failed. Must be shorter than `ack_wait`,
    /// default 20 s.
    pub handler_timeout: Duration,
    /// Failed attempts after which a message becomes a dead letter. Outages of database and broker use none. Default 12.
    pub attempts_max: u32,
    /// Delays between attempts. Default 200 ms to 5 min: what is over in a moment, such as a deadlock, delays its aggregate no longer than that.
    pub backoff: Backoff,
    /// What becomes of deliveries that are no messages. Default: dead letter.
    pub unreadable: Unreadable,
    /// What becomes of versions without a handler. Default: dead letter.
    pub unknown_version: UnknownVersion,
    /// What becomes of event types that another version of the program handles. Default: back to the broker, until that one runs.
    pub unknown_event: UnknownEvent,
    /// How long the inbox remembers what it handled. Must exceed the time after which a message can still be delivered again: the stream's
    /// age limit, which is checked at the start with an hour to spare. 1 min to 10 years, default 15 days: one more than a stream of
    /// `outbox_nats::StreamSpec`. Written as `expires_at` with each row.
    pub keep: Duration,
    /// How often rows that have expired are deleted, on average; `None` for never, if something else calls [`purge`](crate::purge). 1 s to 1 day, default
    /// 10 min.
    pub purge_every: Option<Duration>,
    /// How long a shutdown waits for running handlers; then they are cancelled and their messages returned. Default 10 s.
    pub shutdown_timeout: Duration,
}

impl Default for InboxConfig {
    fn default() -> Self {
        Self {
            concurrency: 8,
            in_flight_max: 256,
            blocked_max: 4_096,
            buffer_bytes: 16 * 1024 * 1024,
            ack_pending_max: 100_000,
            ack_wait: Duration::from_secs(30),
            handler_timeout: Duration::from_secs(20),
            attempts_max: 12,
            backoff: Backoff {
                min: Duration::from_millis(200),
                max: Duration::from_secs(300),
            },
            unreadable: Unreadable::DeadLetter,
            unknown_version: UnknownVersion::DeadLetter,
            unknown_event: UnknownEvent::Retry,
            keep: Duration::from_secs(15 * 24 * 3600),
            purge_every: Some(Duration::from_secs(600)),
            shutdown_timeout: Duration::from_secs(10),
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $ty:ty,)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $ty) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

impl InboxConfig {
    setters! {
        /// Sets [`Self::concurrency`](#structfield.concurrency).
        concurrency: usize,
        /// Sets [`Self::in_flight_max`](#structfield.in_flight_max).
        in_flight_max: usize,
        /// Sets [`Self::blocked_max`](#structfield.blocked_max).
        blocked_max: usize,
        /// Sets [`Self::buffer_bytes`](#structfield.buffer_bytes).
        buffer_bytes: usize,
        /// Sets [`Self::ack_pending_max`](#structfield.ack_pending_max).
        ack_pending_max: usize,
        /// Sets [`Self::ack_wait`](#structfield.ack_wait).
        ack_wait: Duration,
        /// Sets [`Self::handler_timeout`](#structfield.handler_timeout).
        handler_timeout: Duration,
        /// Sets [`Self::attempts_max`](#structfield.attempts_max).
        attempts_max: u32,
        /// Sets [`Self::backoff`](#structfield.backoff).
        backoff: Backoff,
        /// Sets [`Self::unreadable`](#structfield.unreadable).
        unreadable: Unreadable,
        /// Sets [`Self::unknown_version`](#structfield.unknown_version).
        unknown_version: UnknownVersion,
        /// Sets [`Self::unknown_event`](#structfield.unknown_event).
        unknown_event: UnknownEvent,
        /// Sets [`Self::keep`](#structfield.keep).
        keep: Duration,
        /// Sets [`Self::purge_every`](#structfield.purge_every).
        purge_every: Option<Duration>,
        /// Sets [`Self::shutdown_timeout`](#structfield.shutdown_timeout).
        shutdown_timeout: Duration,
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut fail = |text: String| problems.push(Problem::Config(text));
        if !(1..=1024).contains(&self.concurrency) {
            fail(format!("concurrency is {}; use 1 to 1024", self.concurrency));
        }
        if self.in_flight_max < self.concurrency || self.in_flight_max > 10_000 {
            let (in_flight_max, concurrency) = (self.in_flight_max, self.concurrency);
            fail(format!(
                "in_flight_max is {in_flight_max}; use at least concurrency ({concurrency}), at most 10000"
            ));
        }
        if !(1..=100_000).contains(&self.blocked_max) {
            fail(format!("blocked_max is {}; use 1 to 100000", self.blocked_max));
        }
        if self.buffer_bytes < BUFFER_BYTES_MIN {
            let buffer_bytes = self.buffer_bytes;
            fail(format!(
                "buffer_bytes is {buffer_bytes}; use at least {BUFFER_BYTES_MIN}"
            ));
        }
        if self.ack_pending_max < self.in_flight_max || self.ack_pending_max > 1_000_000 {
            let (ack_pending_max, in_flight_max) = (self.ack_pending_max, self.in_flight_max);
            fail(format!(
                "ack_pending_max is {ack_pending_max}; use at least in_flight_max ({in_flight_max}), at most 1000000"
            ));
        }
        let ack_wait = Duration::from_secs(1)..=Duration::from_secs(3600);
        if !ack_wait.contains(&self.ack_wait) {
            fail(format!(
                "ack_wait is {:?}; use {:?} to {:?}",
                self.ack_wait,
                ack_wait.start(),
                ack_wait.end()
            ));
        }
        if self.handler_timeout.is_zero() || self.handler_timeout >= self.ack_wait {
            fail(format!(
                "handler_timeout is {:?} and ack_wait {:?}; use 0 < handler_timeout < ack_wait, or the broker delivers a message \
                 again while its handler runs",
                self.handler_timeout, self.ack_wait
            ));
        }
        if !(1..=1_000_000).contains(&self.attempts_max) {
            fail(format!("attempts_max is {}; use 1 to 1000000", self.attempts_max));
        }
        if self.backoff.min.is_zero() || self.backoff.min > self.backoff.max {
            fail(format!("backoff is {:?}; use 0 < min <= max", self.backoff));
        }
        let keep = Duration::from_secs(60)..=Duration::from_secs(10 * 366 * 24 * 3600);
        if !keep.contains(&self.keep) {
            fail(format!(
                "keep is {:?}; use {:?} to {:?}",
                self.keep,
                keep.start(),
                keep.end()
            ));
        }
        let purge_every = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
        if let Some(every) = self.purge_every.filter(|every| !purge_every.contains(every)) {
            fail(format!(
                "purge_every is {every:?}; use {:?} to {:?}, or `None`",
                purge_every.start(),
                purge_every.end()
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_legal() {
        assert!(InboxConfig::default().problems().is_empty());
    }

    #[test]
    fn every_impossible_setting_is_named() {
        let zero = Duration::ZERO;
        let config = InboxConfig::default()
            .concurrency(0)
            .in_flight_max(20_000)
            .blocked_max(0)
            .buffer_bytes(0)
            .ack_wait(zero)
            .handler_timeout(zero)
            .attempts_max(0)
            .backoff(Backoff { min: zero, max: zero })
            .keep(zero)
            .purge_every(Some(zero));
        let text: Vec<_> = config.problems().iter().map(ToString::to_string).collect();
        for setting in [
            "concurrency",
            "in_flight_max",
            "blocked_max",
            "buffer_bytes",
            "ack_wait",
            "handler_timeout",
            "attempts_max",
            "backoff",
            "keep",
            "purge_every",
        ] {
            let start = format!("inbox configuration: {setting} is ");
            assert!(
                text.iter().any(|line| line.starts_with(&start)),
                "{setting}: {text:#?}"
            );
        }
    }

    #[test]
    fn handler_timeout_must_be_shorter_than_ack_wait() {
        let config = InboxConfig::default().handler_timeout(Duration::from_secs(30));
        assert!(
            matches!(config.problems().as_slice(), [Problem::Config(text)] if text.starts_with("handler_timeout"))
        );
    }
}
