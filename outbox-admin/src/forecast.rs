//! Whether it can wait until morning: how fast the backlog, the stream and the consumers change, and when each of them comes to its end.
//!
//! A pure function of two looks. Invariant: a forecast is a straight line through both, and says so by naming the time between them; where nothing changes, no
//! time is named.

use std::time::Duration;

use serde::Serialize;

use crate::serial;
use crate::words::{counted, in_words, quoted};

/// How the stream is filled, as the broker reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StreamUse {
    /// Messages on the stream.
    pub messages: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// The last stream sequence that was given.
    pub last_sequence: u64,
    /// Most messages; `None` without a bound.
    pub max_messages: Option<u64>,
    /// Most bytes; `None` without a bound.
    pub max_bytes: Option<u64>,
    /// Age at which messages are deleted; `None` if they never are.
    #[serde(rename = "max_age_seconds", serialize_with = "serial::seconds_if_any")]
    pub max_age: Option<Duration>,
    /// Whether a full stream drops its oldest messages. Otherwise it refuses new ones.
    pub drops_oldest: bool,
    /// The time from the recording of the last message to its place on the stream, by the clocks of whoever recorded it and of the broker; `None` if it
    /// is not known.
    #[serde(rename = "last_latency_seconds", serialize_with = "serial::seconds_if_any")]
    pub last_latency: Option<Duration>,
}

/// How far a consumer is, as far as a forecast needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSeen {
    /// Its name.
    pub consumer: String,
    /// Messages that it has not acknowledged.
    pub left: u64,
    /// The stream sequence up to which it has acknowledged everything.
    pub floor: u64,
    /// How long the oldest of what is left has been on the stream.
    pub oldest: Option<Duration>,
}

impl ConsumerSeen {
    /// `None` if the broker has no consumer of this name.
    #[must_use]
    pub fn of(row: &crate::ConsumerRow) -> Option<Self> {
        Some(Self {
            consumer: row.consumer.clone(),
            left: row.undelivered? + row.unacknowledged.unwrap_or_default(),
            floor: row.floor?,
            oldest: row.oldest,
        })
    }
}

/// A look at an outbox, its stream and its consumers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Messages to be published, and whether that is all of them: counts end at a bound.
    pub pending: Option<(u64, bool)>,
    /// How the stream is filled; `None` if it is not known.
    pub stream: Option<StreamUse>,
    /// The consumers.
    pub consumers: Vec<ConsumerSeen>,
}

/// What is to come, if it goes on as it did between two looks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Forecast {
    /// The time between the looks.
    #[serde(rename = "between_seconds", serialize_with = "serial::seconds")]
    pub between: Duration,
    /// What is to come, what ends first at the beginning.
    pub prospects: Vec<Prospect>,
}

/// What a prospect is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Subject {
    /// The messages that are to be published.
    Backlog,
    /// The room of the stream.
    Stream,
    /// What a consumer has left.
    Consumer,
    /// What the stream deletes before a consumer has read it.
    Expiry,
}

/// How it will end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outlook {
    /// There is nothing to wait for.
    Done,
    /// It ends well after a time.
    Ends,
    /// It does not end at this rate.
    Never,
    /// It ends badly after a time.
    Runs,
}

impl Outlook {
    /// The outlook as a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Ends => "ends",
            Self::Never => "never",
            Self::Runs => "runs",
        }
    }

    /// Whether somebody should look.
    #[must_use]
    pub fn is_bad(self) -> bool {
        matches!(self, Self::Never | Self::Runs)
    }
}

/// One thing that is to come.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Prospect {
    /// What it is about.
    pub subject: Subject,
    /// The consumer; empty for the backlog and the stream.
    pub name: String,
    /// How it ends.
    pub outlook: Outlook,
    /// By how many messages (of the stream's room: bytes, if it has a bound in bytes) it changes in a second.
    pub per_second: f64,
    /// When it ends.
    #[serde(rename = "within_seconds", serialize_with = "serial::seconds_if_any")]
    pub within: Option<Duration>,
    /// The same as a sentence.
    pub what: String,
    /// The next command, if somebody should look; otherwise empty.
    pub next: String,
}

/// What is to come, if it goes on as it did between these looks. Nothing is said of what one of them does not know.
#[must_use]
pub fn forecast(earlier: &Seen, now: &Seen, between: Duration) -> Forecast {
    let mut prospects = Vec::new();
    if between > Duration::ZERO {
        prospects.extend(of_backlog(earlier, now, between));
        if let (Some(earlier), Some(now)) = (&earlier.stream, &now.stream) {
            prospects.extend(of_stream(earlier, now, between));
        }
        for consumer in &now.consumers {
            let before = earlier
                .consumers
                .iter()
                .find(|before| before.consumer == consumer.consumer);
            if let Some(before) = before {
                prospects.push(of_consumer(before, consumer, between));
            }
            let max_age = now.stream.as_ref().and_then(|stream| stream.max_age);
            prospects.extend(of_expiry(consumer, max_age));
        }
    }
    // Trouble first, and of that what comes first; what has no time comes last.
    prospects.sort_by_key(|prospect| {
        let is_good = !prospect.outlook.is_bad();
        (is_good, prospect.within.unwrap_or(Duration::MAX))
    });
    Forecast { between, prospects }
}

/// The change in a second.
#[expect(clippy::cast_precision_loss, reason = "a rate is shown with two digits")]
fn rate(earlier: u64, now: u64, between: Duration) -> f64 {
    let change = if now >= earlier {
        (now - earlier) as f64
    } else {
        -((earlier - now) as f64)
    };
    change / between.as_secs_f64()
}

/// The time that an amount takes at a rate above zero; `None` beyond a century.
#[expect(clippy::cast_precision_loss, reason = "a forecast is shown with one unit")]
fn time_for(amount: u64, per_second: f64) -> Option<Duration> {
    const CENTURY: f64 = 100.0 * 365.0 * 86_400.0;
    let seconds = amount as f64 / per_second;
    (per_second > 0.0 && seconds < CENTURY).then(|| Duration::from_secs_f64(seconds))
}

fn of_backlog(earlier: &Seen, now: &Seen, between: Duration) -> Option<Prospect> {
    let ((before, is_before_all), (left, is_all)) = (earlier.pending?, now.pending?);
    let per_second = rate(before, left, between);
    let (outlook, within, what) = if left == 0 {
        (Outlook::Done, None, "nothing is to be published".to_owned())
    } else if !is_all || !is_before_all {
        let what = format!("at least {left} messages are to be published; beyond that, nobody counts");
        (Outlook::Never, None, what)
    } else {
        let messages = counted(left, "message is", "messages are");
        match time_for(left, -per_second) {
            Some(within) => {
                let what = format!("{messages} to be published, all of them in {}", in_words(within));
                (Outlook::Ends, Some(within), what)
            }
            None if per_second > 0.0 => {
                let what = format!("{messages} to be published, {per_second:.1} more each second");
                (Outlook::Never, None, what)
            }
            None => {
                let what = format!("{messages} to be published, as many as before");
                (Outlook::Never, None, what)
            }
        }
    };
    Some(Prospect::new(
        (Subject::Backlog, ""),
        outlook,
        per_second,
        within,
        what,
        "outbox relays",
    ))
}

/// The bound of bytes is looked at first, since it is the one that a stream should have.
fn of_stream(earlier: &StreamUse, now: &StreamUse, between: Duration) -> Option<Prospect> {
    let (before, used, most, unit) = match (now.max_bytes, now.max_messages) {
        (Some(most), _) => (earlier.bytes, now.bytes, most, "bytes"),
        (None, Some(most)) => (earlier.messages, now.messages, most, "messages"),
        (None, None) => return None,
    };
    let per_second = rate(before, used, between);
    let share = used.saturating_mul(100) / most.max(1);
    let end = if now.drops_oldest {
        "drops its oldest messages"
    } else {
        "refuses new messages"
    };
    let room = most.saturating_sub(used);
    let (outlook, within, what) = match time_for(room, per_second) {
        Some(within) => {
            let what = format!("the stream is {share} % full and {end} in {}", in_words(within));
            (Outlook::Runs, Some(within), what)
        }
        None => {
            let what = format!("the stream is {share} % full ({used} of {most} {unit}), and does not grow");
            (Outlook::Done, None, what)
        }
    };
    Some(Prospect::new(
        (Subject::Stream, ""),
        outlook,
        per_second,
        within,
        what,
        "outbox doctor",
    ))
}

fn of_consumer(earlier: &ConsumerSeen, now: &ConsumerSeen, between: Duration) -> Prospect {
    let per_second = rate(earlier.left, now.left, between);
    let handled = rate(earlier.floor, now.floor, between);
    let messages = counted(now.left, "message is", "messages are");
    let (outlook, within, what) = if now.left == 0 {
        (Outlook::Done, None, "it has handled everything".to_owned())
    } else {
        match time_for(now.left, -per_second) {
            Some(within) => {
                let what = format!("{messages} left; it catches up in {}", in_words(within));
                (Outlook::Ends, Some(within), what)
            }
            None if handled <= 0.0 => (
                Outlook::Never,
                None,
                format!("{messages} left, and it handles none"),
            ),
            None => {
                let what = format!(
                    "{messages} left; it passes {handled:.1} stream sequences each second and never catches up at this rate"
                );
                (Outlook::Never, None, what)
            }
        }
    };
    let next = format!("outbox consumers lag {}", quoted(&now.consumer));
    Prospect::new(
        (Subject::Consumer, &now.consumer),
        outlook,
        per_second,
        within,
        what,
        &next,
    )
}

/// What the stream deletes next although this consumer has not read it.
fn of_expiry(consumer: &ConsumerSeen, max_age: Option<Duration>) -> Option<Prospect> {
    let (oldest, max_age) = (consumer.oldest?, max_age?);
    let within = max_age.saturating_sub(oldest);
    let what = format!(
        "its oldest message is deleted by the stream in {}",
        in_words(within)
    );
    let next = format!("outbox consumers lag {}", quoted(&consumer.consumer));
    let subject = (Subject::Expiry, consumer.consumer.as_str());
    Some(Prospect::new(
        subject,
        Outlook::Runs,
        0.0,
        Some(within),
        what,
        &next,
    ))
}

impl Prospect {
    fn new(
        (subject, name): (Subject, &str),
        outlook: Outlook,
        per_second: f64,
        within: Option<Duration>,
        what: String,
        next: &str,
    ) -> Self {
        Self {
            subject,
            name: name.to_owned(),
            outlook,
            // Two digits, which are more than a look of seconds can tell.
            per_second: (per_second * 100.0).round() / 100.0,
            within,
            what,
            next: if outlook.is_bad() {
                next.to_owned()
            } else {
                String::new()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BETWEEN: Duration = Duration::from_secs(10);

    fn backlog(pending: u64) -> Seen {
        Seen {
            pending: Some((pending, true)),
            ..Seen::default()
        }
    }

    fn stream(bytes: u64, max_bytes: Option<u64>) -> Seen {
        Seen {
            stream: Some(StreamUse {
                bytes,
                max_bytes,
                max_age: Some(Duration::from_secs(3600)),
                ..StreamUse::default()
            }),
            ..Seen::default()
        }
    }

    fn consumer(left: u64, floor: u64, oldest: Option<u64>) -> Seen {
        let mut seen = stream(0, None);
        seen.consumers.push(ConsumerSeen {
            consumer: "billing".to_owned(),
            left,
            floor,
            oldest: oldest.map(Duration::from_secs),
        });
        seen
    }

    #[track_caller]
    fn check(earlier: &Seen, now: &Seen, expected: &[(Outlook, Option<u64>, &str)]) {
        let forecast = forecast(earlier, now, BETWEEN);
        let found: Vec<_> = forecast
            .prospects
            .iter()
            .map(|prospect| {
                assert_eq!(
                    prospect.next.is_empty(),
                    !prospect.outlook.is_bad(),
                    "{prospect:?}"
                );
                let within = prospect.within.map(|within| within.as_secs());
                (prospect.outlook, within, prospect.what.as_str())
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_backlog_that_shrinks_ends_and_one_that_does_not_never_does() {
        let ends = "500 messages are to be published, all of them in 50 s";
        check(&backlog(600), &backlog(500), &[(Outlook::Ends, Some(50), ends)]);
        let grows = "1 message is to be published, 0.1 more each second";
        check(&backlog(0), &backlog(1), &[(Outlook::Never, None, grows)]);
        let stands = "7 messages are to be published, as many as before";
        check(&backlog(7), &backlog(7), &[(Outlook::Never, None, stands)]);
        let done = "nothing is to be published";
        check(&backlog(7), &backlog(0), &[(Outlook::Done, None, done)]);
    }

    #[test]
    fn of_a_backlog_that_nobody_has_counted_no_time_is_told() {
        let mut bounded = backlog(100_000);
        bounded.pending = Some((100_000, false));
        let what = "at least 100000 messages are to be published; beyond that, nobody counts";
        check(&bounded, &bounded, &[(Outlook::Never, None, what)]);
    }

    #[test]
    fn a_stream_that_grows_is_full_at_a_time_and_one_without_a_bound_never() {
        let full = "the stream is 20 % full and refuses new messages in 80 s";
        check(
            &stream(100, Some(1000)),
            &stream(200, Some(1000)),
            &[(Outlook::Runs, Some(80), full)],
        );
        let stands = "the stream is 20 % full (200 of 1000 bytes), and does not grow";
        check(
            &stream(200, Some(1000)),
            &stream(200, Some(1000)),
            &[(Outlook::Done, None, stands)],
        );
        check(&stream(1, None), &stream(2, None), &[]);
    }

    #[test]
    fn a_consumer_catches_up_or_never_does() {
        let ends = "100 messages are left; it catches up in 10 s";
        check(
            &consumer(200, 1, None),
            &consumer(100, 101, None),
            &[(Outlook::Ends, Some(10), ends)],
        );
        let never = "200 messages are left; it passes 5.0 stream sequences each second and never catches up at this rate";
        check(
            &consumer(100, 1, None),
            &consumer(200, 51, None),
            &[(Outlook::Never, None, never)],
        );
        let none = "1 message is left, and it handles none";
        check(
            &consumer(1, 1, None),
            &consumer(1, 1, None),
            &[(Outlook::Never, None, none)],
        );
        let done = "it has handled everything";
        check(
            &consumer(1, 1, None),
            &consumer(0, 2, None),
            &[(Outlook::Done, None, done)],
        );
    }

    #[test]
    fn what_the_stream_deletes_unread_comes_before_what_ends_well() {
        let expires = "its oldest message is deleted by the stream in 10 min";
        let ends = "100 messages are left; it catches up in 10 s";
        check(
            &consumer(200, 1, Some(2990)),
            &consumer(100, 101, Some(3000)),
            &[
                (Outlook::Runs, Some(600), expires),
                (Outlook::Ends, Some(10), ends),
            ],
        );
    }

    #[test]
    fn one_look_or_an_unknown_consumer_tells_nothing() {
        assert!(
            forecast(&backlog(1), &backlog(1), Duration::ZERO)
                .prospects
                .is_empty()
        );
        check(&stream(0, None), &consumer(1, 1, None), &[]);
    }
}
