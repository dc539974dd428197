//! Settings of an inbox, each with its bound, default and trade-off.

use std::ops::RangeInclusive;
use std::time::Duration;

use outbox_core::retry::Backoff;

/// What happens to a delivery that is no message of an outbox, because headers are missing or malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unreadable {
    /// It becomes a dead letter with its raw bytes.
    #[default]
    DeadLetter,
    /// It is acknowledged and logged. For streams that carry other traffic as well.
    Ignore,
    /// It is tried again after the longest delay of [`InboxConfig::backoff`], until a newer program can read it. It uses no attempts.
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

/// What happens to a message whose event type has no handler in this process, although somebody has asked for it under the consumer's name: another version
/// of the program, which runs beside this one or ran before it, or another program. Messages that nobody has asked for are skipped: some brokers deliver
/// them too.
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

const ACK_WAIT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Of the inbox and of requests.
pub(crate) const RETENTION: RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(10 * 366 * 24 * 3600);

/// How often expired rows are deleted, on average.
pub(crate) const PURGE_EVERY: Duration = Duration::from_secs(600);

pub(crate) const SECOND_TO_DAY: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// Settings of an inbox. `InboxConfig::default()` is right for most services. Consumers that need other settings run in an
/// inbox of their own ([`Inbox::with_consumers`](crate::Inbox::with_consumers)), in the same process if you like.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxConfig {
    /// Handlers that run at a time, per consumer. Each holds a database connection. Messages of one aggregate never run at
    /// the same time. 1 to 1,024, default 8.
    pub concurrency: usize,
    /// Deliveries in memory that wait because a message of their aggregate failed or is missing, per consumer. Beyond
    /// this number, the inbox gives deliveries back to the broker that lose least time by it; nothing overtakes them. They
    /// return after a second at the earliest, even if their aggregate is healthy again. 1 to 100,000, default 4,096.
    pub blocked_max: usize,
    /// Bytes of payloads and headers in memory, per consumer. Beyond it, the inbox receives nothing and gives deliveries
    /// that wait for a failed message back to the broker. It always takes one delivery, however large. Dead letters
    /// that are retried count too, and can take as much again. In addition, the broker's driver holds at most four
    /// deliveries for each of `concurrency`, or two batches if that is more. At least 64 KiB, default 16 MiB.
    pub buffer_bytes: usize,
    /// Unanswered deliveries per consumer, over all processes: `max_ack_pending` on NATS. Deliveries that wait for a failed
    /// message of their aggregate count too, even after they were given back. At this number the broker sends nothing new.
    /// `concurrency` to 1,000,000, default 100,000. Consumers of order `strict` have 1.
    pub ack_pending_max: usize,
    /// Time after which the broker delivers an unanswered message again: how long a crashed process delays its messages.
    /// 1 s to 1 h, default 30 s.
    pub ack_wait: Duration,
    /// Longest run of a handler. Then the inbox cancels it, rolls it back and counts it as failed. More than zero and shorter than `ack_wait`,
    /// default 20 s.
    pub handler_timeout: Duration,
    /// Failed attempts after which a message becomes a dead letter. Outages of database and broker use none. 1 to 1,000,000, default 12.
    pub attempts_max: u32,
    /// Delays between attempts. The shortest is more than zero. Default 200 ms to 5 min.
    pub backoff: Backoff,
    /// What happens to deliveries that are no messages. Default: they become dead letters.
    pub unreadable: Unreadable,
    /// What happens to messages of versions without a handler. Default: they become dead letters.
    pub unknown_version: UnknownVersion,
    /// What happens to messages of event types that another version of the program handles. Default: they go back to the broker until that version runs.
    pub unknown_event: UnknownEvent,
    /// How long the inbox remembers what it handled. It must exceed the time after which a message can still be delivered again: the stream's
    /// retention, which is checked at the start with an hour to spare. 1 min to 10 years, default 15 days: one more than a stream of
    /// `outbox_nats::EventStream`. Each row has it as `expires_at`.
    pub retention: Duration,
    /// How long a shutdown waits for running handlers. Then the inbox cancels them and gives their messages back. Default 10 s.
    pub shutdown_timeout: Duration,
    /// A subscription that is away for this long is reported as stuck by [`Inbox::health`](crate::Inbox::health), and so is a database that cannot be reached at the start or
    /// does not answer for this long. 1 s to 1 day, default 5 min.
    pub stuck_after: Duration,
    /// Whether the inbox starts on a database engine that was not tested, such as CockroachDB, YugabyteDB or TiDB. Default: false.
    pub allow_untested_engine: bool,
    /// Deliveries in memory that run or are about to run, and deliveries behind them in their aggregates, per consumer.
    /// The inbox takes fewer if it could not handle them within half of `ack_wait`, and at least `concurrency` and
    /// two batches. Default: 32 for each of `concurrency`, at most 10,000 and at most `ack_pending_max`.
    #[doc(hidden)]
    pub in_flight_max: Option<usize>,
    /// How often the inbox deletes expired rows, on average.
    #[doc(hidden)]
    pub purge_every: Duration,
}

impl Default for InboxConfig {
    fn default() -> Self {
        Self {
            concurrency: 8,
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
            retention: Duration::from_secs(15 * 24 * 3600),
            shutdown_timeout: Duration::from_secs(10),
            stuck_after: Duration::from_secs(300),
            allow_untested_engine: false,
            in_flight_max: None,
            purge_every: PURGE_EVERY,
        }
    }
}

impl InboxConfig {
    outbox_core::__setters! {
        concurrency: usize,
        blocked_max: usize,
        buffer_bytes: usize,
        ack_pending_max: usize,
        ack_wait: Duration,
        handler_timeout: Duration,
        attempts_max: u32,
        backoff: Backoff,
        unreadable: Unreadable,
        unknown_version: UnknownVersion,
        unknown_event: UnknownEvent,
        retention: Duration,
        shutdown_timeout: Duration,
        stuck_after: Duration,
        allow_untested_engine: bool,
        #[doc(hidden)]
        in_flight_max: usize,
        #[doc(hidden)]
        purge_every: Duration,
    }

    /// The number of deliveries in memory that run or are about to run.
    pub(crate) fn in_flight_bound(&self) -> usize {
        let default = self.concurrency.saturating_mul(32).min(10_000);
        let most = self.in_flight_max.unwrap_or(default.min(self.ack_pending_max));
        most.max(self.concurrency)
    }

    /// What is wrong, one text for each setting.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.size_problems();
        problems.extend(self.time_problems());
        problems
    }

    fn size_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let Self {
            concurrency,
            blocked_max,
            buffer_bytes,
            ack_pending_max,
            attempts_max,
            ..
        } = *self;
        if !(1..=1024).contains(&concurrency) {
            problems.push(format!("concurrency is {concurrency}; use 1 to 1024"));
        }
        if !(1..=100_000).contains(&blocked_max) {
            problems.push(format!("blocked_max is {blocked_max}; use 1 to 100000"));
        }
        if buffer_bytes < BUFFER_BYTES_MIN {
            problems.push(format!(
                "buffer_bytes is {buffer_bytes}; use at least {BUFFER_BYTES_MIN}"
            ));
        }
        let least = concurrency.clamp(1, 1024);
        if !(least..=1_000_000).contains(&ack_pending_max) {
            problems.push(format!(
                "ack_pending_max is {ack_pending_max}; use {least} to 1000000"
            ));
        }
        if !(1..=1_000_000).contains(&attempts_max) {
            problems.push(format!("attempts_max is {attempts_max}; use 1 to 1000000"));
        }
        problems
    }

    fn time_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, time, range) in [
            ("ack_wait", self.ack_wait, ACK_WAIT),
            ("retention", self.retention, RETENTION),
            ("stuck_after", self.stuck_after, SECOND_TO_DAY),
        ] {
            if !range.contains(&time) {
                problems.push(format!(
                    "{name} is {time:?}; use {:?} to {:?}",
                    range.start(),
                    range.end()
                ));
            }
        }
        if self.handler_timeout.is_zero() || self.handler_timeout >= self.ack_wait {
            problems.push(format!(
                "handler_timeout is {:?} and ack_wait {:?}; use 0 < handler_timeout < ack_wait, or the broker delivers a message \
                 again while its handler runs",
                self.handler_timeout, self.ack_wait
            ));
        }
        if self.backoff.min.is_zero() || self.backoff.min > self.backoff.max {
            problems.push(format!("backoff is {:?}; use 0 < min <= max", self.backoff));
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
            .blocked_max(0)
            .buffer_bytes(0)
            .ack_pending_max(0)
            .ack_wait(zero)
            .handler_timeout(zero)
            .attempts_max(0)
            .backoff(Backoff { min: zero, max: zero })
            .retention(zero)
            .stuck_after(zero);
        let text = config.problems();
        for setting in [
            "concurrency",
            "blocked_max",
            "buffer_bytes",
            "ack_pending_max",
            "ack_wait",
            "handler_timeout",
            "attempts_max",
            "backoff",
            "retention",
            "stuck_after",
        ] {
            let start = format!("{setting} is ");
            assert!(
                text.iter().any(|line| line.starts_with(&start)),
                "{setting}: {text:#?}"
            );
        }
    }

    #[test]
    fn fewer_unanswered_deliveries_mean_fewer_in_memory() {
        for (concurrency, unanswered, expected) in [
            (8, 100_000, 256),
            (313, 100_000, 10_000),
            (64, 1_000, 1_000),
            (64, 64, 64),
        ] {
            let config = InboxConfig::default()
                .concurrency(concurrency)
                .ack_pending_max(unanswered);
            assert!(config.problems().is_empty(), "{:?}", config.problems());
            assert_eq!(config.in_flight_bound(), expected);
        }
        let config = InboxConfig::default().ack_pending_max(7);
        assert!(
            matches!(config.problems().as_slice(), [text] if text.starts_with("ack_pending_max is 7; use 8 "))
        );
        let config = InboxConfig::default().concurrency(usize::MAX);
        assert!(matches!(config.problems().as_slice(), [text] if text.starts_with("concurrency")));
    }

    #[test]
    fn handler_timeout_must_be_shorter_than_ack_wait() {
        let config = InboxConfig::default().handler_timeout(Duration::from_secs(30));
        assert!(matches!(config.problems().as_slice(), [text] if text.starts_with("handler_timeout")));
    }
}
