//! Extrapolates backlog, consumer lag and expiry from two observations.
//!
//! Invariant: forecasts are linear and name the time between the observations.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::consumers::ConsumerRow;
use crate::next::{Command, Next};
use crate::serial;
use crate::table::{Column, Columns};
use crate::words::{any, compact, counted, in_words, yes};

/// Progress of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSeen {
    /// Consumer name.
    pub consumer: String,
    /// Messages not acknowledged.
    pub left: u64,
    /// Ack floor, as a stream sequence.
    pub floor: u64,
    /// Age of the oldest unacknowledged message.
    pub oldest: Option<Duration>,
}

impl ConsumerSeen {
    /// Progress from a row; `None` without such a consumer.
    pub fn of(row: &ConsumerRow) -> Option<Self> {
        Some(Self {
            consumer: row.consumer.clone(),
            left: row.undelivered? + row.unacknowledged.unwrap_or_default(),
            floor: row.floor?,
            oldest: row.oldest,
        })
    }
}

/// An observation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Pending messages, and whether the count is exact.
    pub pending: Option<(u64, bool)>,
    /// Stream `max_age`.
    pub max_age: Option<Duration>,
    /// The consumers.
    pub consumers: Vec<ConsumerSeen>,
}

/// Forecast at the present rates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Time between the observations.
    #[serde(rename = "between_seconds", serialize_with = "serial::seconds")]
    pub between: Duration,
    /// Prospects, problems first, then by time.
    pub prospects: Vec<Prospect>,
}

/// Subject of a prospect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Backlog of pending messages.
    Backlog,
    /// Lag of a consumer.
    Consumer,
    /// Expiry of unread messages.
    Expiry,
}

/// How a prospect ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outlook {
    /// The backlog or lag is zero.
    Done,
    /// The backlog or lag will end.
    Ends,
    /// The backlog or lag will never end.
    Never,
    /// Messages will expire unread.
    Runs,
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Outlook {
    /// Whether an operator should act.
    pub fn is_bad(self) -> bool {
        matches!(self, Self::Never | Self::Runs)
    }
}

/// One prospect.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prospect {
    /// Subject of the prospect.
    pub subject: Subject,
    /// Consumer name; empty for the backlog.
    pub name: String,
    /// How it ends.
    pub outlook: Outlook,
    /// Change of the backlog or lag per second.
    pub per_second: f64,
    /// Time until the outlook.
    #[serde(rename = "within_seconds", serialize_with = "serial::seconds_if_any")]
    pub within: Option<Duration>,
    /// Sentence.
    pub what: String,
    /// Next step.
    #[serde(flatten)]
    pub next: Next,
}

/// Extrapolates observations made `between` apart. Unknown values give no prospect.
pub fn forecast(earlier: &Seen, now: &Seen, between: Duration) -> Forecast {
    let mut prospects = Vec::new();
    if between > Duration::ZERO {
        prospects.extend(of_backlog(earlier, now, between));
        for consumer in &now.consumers {
            let before = earlier
                .consumers
                .iter()
                .find(|before| before.consumer == consumer.consumer);
            prospects.extend(before.map(|before| of_consumer(before, consumer, between)));
            prospects.extend(of_expiry(consumer, now.max_age));
        }
    }
    prospects.sort_by_key(|prospect| {
        let is_good = !prospect.outlook.is_bad();
        (is_good, prospect.within.unwrap_or(Duration::MAX))
    });
    Forecast { between, prospects }
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with two digits")]
fn rate(earlier: u64, now: u64, between: Duration) -> f64 {
    let change = if now >= earlier {
        (now - earlier) as f64
    } else {
        -((earlier - now) as f64)
    };
    change / between.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a forecast is shown with one unit")]
fn time_for(amount: u64, per_second: f64) -> Option<Duration> {
    const CENTURY: f64 = 100.0 * 365.0 * 86_400.0;
    let seconds = amount as f64 / per_second;
    (per_second > 0.0 && seconds < CENTURY).then(|| Duration::from_secs_f64(seconds))
}

fn of_backlog(earlier: &Seen, now: &Seen, between: Duration) -> Option<Prospect> {
    let ((before, was_exact), (left, is_exact)) = (earlier.pending?, now.pending?);
    // An exact count and an estimate are not comparable.
    if was_exact != is_exact {
        return None;
    }
    let per_second = rate(before, left, between);
    let about = if is_exact { "" } else { "about " };
    let (outlook, within, what) = if left == 0 {
        (Outlook::Done, None, "nothing is pending".to_owned())
    } else {
        let messages = counted(left, "message is", "messages are");
        match time_for(left, -per_second) {
            Some(within) => {
                let what = format!(
                    "{about}{messages} pending, {:.1} fewer each second; all are published in {}",
                    -per_second,
                    in_words(within)
                );
                (Outlook::Ends, Some(within), what)
            }
            None if per_second > 0.0 => {
                let what = format!("{about}{messages} pending, {per_second:.1} more each second");
                (Outlook::Never, None, what)
            }
            None => {
                let what = format!("{about}{messages} pending, unchanged");
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
        (Outlook::Done, None, "nothing is left".to_owned())
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
                format!("{messages} left, and none are handled"),
            ),
            None => {
                let what = format!(
                    "{messages} left; it passes {handled:.1} stream sequences each second and never catches up at this rate"
                );
                (Outlook::Never, None, what)
            }
        }
    };
    Prospect::new(
        (Subject::Consumer, &now.consumer),
        outlook,
        per_second,
        within,
        what,
        "outbox consumers list",
    )
}

fn of_expiry(consumer: &ConsumerSeen, max_age: Option<Duration>) -> Option<Prospect> {
    let within = max_age?.saturating_sub(consumer.oldest?);
    let what = format!(
        "its oldest message is deleted by the stream in {}",
        in_words(within)
    );
    let subject = (Subject::Expiry, consumer.consumer.as_str());
    let next = "outbox consumers list";
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
            // Two digits: observations seconds apart are no more precise.
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
pub struct ListedConsumer {
    /// The consumer.
    #[serde(flatten)]
    pub row: ConsumerRow,
    /// Prospects of the consumer; `None` without a forecast.
    pub forecast: Option<Vec<Prospect>>,
}

impl ListedConsumer {
    /// Selects the consumer's prospects from a forecast.
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
