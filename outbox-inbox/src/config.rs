//! Settings of an inbox.

use std::ops::RangeInclusive;
use std::time::Duration;

use outbox_core::retry::Backoff;

/// Handling of deliveries with missing or malformed outbox headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unreadable {
    /// The delivery is dead-lettered with its raw bytes.
    #[default]
    DeadLetter,
    /// The delivery is acknowledged and logged. For streams that also carry other messages.
    Ignore,
    /// The delivery is retried after the longest [`InboxConfig::backoff`], without using attempts.
    Retry,
}

/// Handling of messages of a handled event type in an unhandled version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum UnknownVersion {
    /// The message is dead-lettered.
    #[default]
    DeadLetter,
    /// The message returns to the broker, as with [`UnknownEvent::Retry`]. Later messages of its
    /// aggregate can run before it, except with order `strict` or strategy `sequence`.
    Retry,
    /// The message is acknowledged and logged.
    Ignore,
}

/// Handling of event types that only another program or version handles, under the same consumer
/// name. Event types without any handler are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum UnknownEvent {
    /// The message returns to the broker until a process handles it, with delays from the shortest
    /// to the longest [`InboxConfig::backoff`]. No attempt is used. With order `strict` all other
    /// messages wait, with strategy `sequence` later messages of its aggregate.
    #[default]
    Retry,
    /// The message is acknowledged, counted, and logged once.
    Skip,
    /// The message is dead-lettered.
    DeadLetter,
}

const BUFFER_BYTES_MIN: usize = 64 * 1024;

const ACK_WAIT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

pub(crate) const RETENTION: RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(10 * 366 * 24 * 3600);

pub(crate) const PURGE_EVERY: Duration = Duration::from_secs(600);

pub(crate) const SECOND_TO_DAY: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// Settings of an inbox. Consumers with different settings need separate inboxes
/// ([`Inbox::with_consumers`](crate::Inbox::with_consumers)).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxConfig {
    /// Maximum concurrent handlers per consumer. Each handler uses a database connection. 1 to
    /// 1,024, default 8.
    pub concurrency: usize,
    /// Maximum deliveries per consumer in memory behind a failed or missing message. Above this
    /// bound, deliveries return to the broker for at least one second and keep their order. 1 to
    /// 100,000, default 4,096.
    pub blocked_max: usize,
    /// Maximum bytes of payloads and headers in memory per consumer. At this bound the inbox stops
    /// receiving and returns blocked deliveries. One delivery is always accepted. Retried dead
    /// letters can use the same amount again; the broker driver holds up to four deliveries for
    /// each of `concurrency`, or two batches if they are larger. At least 64 KiB, default 16 MiB.
    pub buffer_bytes: usize,
    /// Maximum unacknowledged deliveries per consumer over all processes, including returned
    /// deliveries: `max_ack_pending` on NATS. At this bound the broker sends no new messages.
    /// `concurrency` to 1,000,000, default 100,000. Always 1 with order `strict`.
    pub ack_pending_max: usize,
    /// Time until the broker redelivers an unacknowledged message. 1 s to 1 h, default 30 s.
    pub ack_wait: Duration,
    /// Maximum run time of a handler. A longer run is cancelled and rolled back as a failed
    /// attempt. More than zero and shorter than `ack_wait`, default 20 s.
    pub handler_timeout: Duration,
    /// Failed attempts until a message is dead-lettered. Outages of database and broker use no
    /// attempts. 1 to 1,000,000, default 12.
    pub attempts_max: u32,
    /// Delays between attempts. The shortest delay is more than zero. Default 200 ms to 5 min.
    pub backoff: Backoff,
    /// Handling of deliveries that are no outbox messages. Default: dead-letter.
    pub unreadable: Unreadable,
    /// Handling of event versions without a handler. Default: dead-letter.
    pub unknown_version: UnknownVersion,
    /// Handling of event types that only another version of the program handles. Default: return
    /// the message to the broker.
    pub unknown_event: UnknownEvent,
    /// How long rows of handled messages are kept. At least one hour longer than the retention of
    /// the stream, checked at the start. 1 min to 10 years, default 15 days.
    pub retention: Duration,
    /// How long a shutdown waits for running handlers. Default 10 s.
    pub shutdown_timeout: Duration,
    /// Time without a subscription, without the database at the start, or without progress, after
    /// which [`Inbox::health`](crate::Inbox::health) is `Stuck`. 1 s to 1 day, default 5 min.
    pub stuck_after: Duration,
    /// Whether the inbox starts on an untested database engine, such as CockroachDB. Default:
    /// false.
    pub allow_untested_engine: bool,
    /// Maximum deliveries per consumer in memory that can run, including deliveries that wait for
    /// them. The bound is lower if these deliveries could not be handled within half of `ack_wait`,
    /// but at least `concurrency` and two batches. Default: 32 for each of `concurrency`, at most
    /// 10,000 and at most `ack_pending_max`.
    #[doc(hidden)]
    pub in_flight_max: Option<usize>,
    /// Mean interval between deletions of expired rows.
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

    pub(crate) fn in_flight_bound(&self) -> usize {
        let default = self.concurrency.saturating_mul(32).min(10_000);
        let most = self.in_flight_max.unwrap_or(default.min(self.ack_pending_max));
        most.max(self.concurrency)
    }

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
                "handler_timeout is {:?} and ack_wait {:?}; use 0 < handler_timeout < ack_wait; otherwise \
                 the broker redelivers a message while its handler runs",
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
    fn every_invalid_setting_is_reported() {
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
    fn ack_pending_max_bounds_deliveries_in_memory() {
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
}
