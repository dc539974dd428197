//! Whether it can wait until morning: how fast the backlog and the consumers change, when each of them comes to its end, and what the stream deletes before.
//!
//! A pure function of two looks. Invariant: a forecast is a straight line through both, and says so by naming the time between them; where nothing changes, no
//! time is named.

mod full;

use std::fmt;
use std::time::Duration;

use serde::Serialize;

pub use full::doubled;
pub(crate) use full::reached;

use crate::consumers::ConsumerRow;
use crate::next::{Command, Next};
use crate::serial;
use crate::table::{Column, Columns};
use crate::words::{any, compact, counted, in_words, yes};

/// How the stream is filled, as the broker reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamUse {
    /// Its name, for commands; empty if it is not known.
    pub name: String,
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
    pub max_age: Option<Duration>,
    /// Whether a full stream drops its oldest messages. Otherwise it refuses new ones.
    pub drops_oldest: bool,
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
    pub fn of(row: &ConsumerRow) -> Option<Self> {
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
    /// Messages to be published, and whether that is exact rather than an estimate.
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
    /// It ends badly after a time, which may be unknown.
    Runs,
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Outlook {
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
    /// The consumer; empty for the backlog.
    pub name: String,
    /// How it ends.
    pub outlook: Outlook,
    /// By how many messages it changes in a second.
    pub per_second: f64,
    /// When it ends; `None` if it does not, or if nobody knows.
    #[serde(rename = "within_seconds", serialize_with = "serial::seconds_if_any")]
    pub within: Option<Duration>,
    /// The same as a sentence.
    pub what: String,
    /// The next command, if somebody should look.
    #[serde(flatten)]
    pub next: Next,
}

/// What is to come, if it goes on as it did between these looks. Nothing is said of what one of them does not know.
#[must_use]
pub fn forecast(earlier: &Seen, now: &Seen, between: Duration) -> Forecast {
    let mut prospects = Vec::new();
    if between > Duration::ZERO {
        prospects.extend(of_backlog(earlier, now, between));
        for consumer in &now.consumers {
            let before = earlier
                .consumers
                .iter()
                .find(|before| before.consumer == consumer.consumer);
            if let Some(before) = before {
                let prospect = of_consumer(before, consumer, between);
                let caught_up = prospect.within;
                prospects.push(prospect);
                if let (Some(earlier), Some(now)) = (&earlier.stream, &now.stream) {
                    prospects.extend(full::of_drops((earlier, now), consumer, caught_up, between));
                }
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
    let ((before, was_exact), (left, is_exact)) = (earlier.pending?, now.pending?);
    // A count and an estimate are not two points of one line.
    if was_exact != is_exact {
        return None;
    }
    let per_second = rate(before, left, between);
    let about = if is_exact { "" } else { "about " };
    let (outlook, within, what) = if left == 0 {
        (Outlook::Done, None, "nothing is to be published".to_owned())
    } else {
        let messages = counted(left, "message is", "messages are");
        match time_for(left, -per_second) {
            Some(within) => {
                let what = format!(
                    "{about}{messages} to be published, {:.1} fewer each second; all of them in {}",
                    -per_second,
                    in_words(within)
                );
                (Outlook::Ends, Some(within), what)
            }
            None if per_second > 0.0 => {
                let what = format!("{about}{messages} to be published, {per_second:.1} more each second");
                (Outlook::Never, None, what)
            }
            None => {
                let what = format!("{about}{messages} to be published, as many as before");
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
        "outbox relay list",
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
                let what = format!(
                    "{messages} left, {:.1} fewer each second; it catches up in {}",
                    -per_second,
                    in_words(within)
                );
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
    let next = Command::from("outbox consumers lag").arg(&now.consumer);
    Prospect::new(
        (Subject::Consumer, &now.consumer),
        outlook,
        per_second,
        within,
        what,
        next,
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
    let next = Command::from("outbox consumers lag").arg(&consumer.consumer);
    let subject = (Subject::Expiry, consumer.consumer.as_str());
    Some(Prospect::new(
        subject,
        Outlook::Runs,
        0.0,
        Some(within),
        what,
        next,
    ))
}

impl Prospect {
    fn new(
        (subject, name): (Subject, &str),
        outlook: Outlook,
        per_second: f64,
        within: Option<Duration>,
        what: String,
        next: impl Into<Next>,
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
                next.into()
            } else {
                Next::default()
            },
        }
    }
}

/// A consumer with its forecast.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ListedConsumer {
    /// The consumer.
    #[serde(flatten)]
    pub row: ConsumerRow,
    /// Its prospects; `None` without a forecast.
    pub forecast: Option<Vec<Prospect>>,
}

impl ListedConsumer {
    /// The consumer with its part of a forecast.
    #[must_use]
    pub fn new(row: ConsumerRow, forecast: Option<&Forecast>) -> Self {
        let forecast = forecast.map(|forecast| {
            let prospects = forecast.prospects.iter();
            let of_it = prospects.filter(|prospect| prospect.name == row.consumer);
            of_it.cloned().collect()
        });
        Self { row, forecast }
    }
}

impl Columns for ListedConsumer {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("consumer", |listed| listed.row.consumer.clone()),
        Column::new("state", |listed| listed.row.state.to_string()),
        Column::new("undelivered", |listed| any(listed.row.undelivered)),
        Column::new("unacknowledged", |listed| any(listed.row.unacknowledged)),
        Column::new("oldest", |listed| any(listed.row.oldest.map(compact))),
        Column::new("receiving", |listed| any(listed.row.is_receiving.map(yes))),
        Column::linked(
            "dead_letters",
            |listed| any(listed.row.dead_letters_open),
            |listed| {
                let groups = Command::from("outbox dead-letters groups");
                Some(groups.option("--consumer", &listed.row.consumer))
            },
        ),
        Column::new("to_retry", |listed| any(listed.row.dead_letters_marked)),
        Column::new("paused", |listed| any(listed.row.paused.as_ref())),
        Column::new("forecast", |listed| {
            let prospects = listed.forecast.iter().flatten();
            let words: Vec<&str> = prospects.map(|prospect| prospect.what.as_str()).collect();
            words.join("; ")
        }),
    ];
}

#[cfg(test)]
mod tests;
