//! Forecast of a consumer or of a large backlog, extrapolated from two observations.

use std::time::Duration;

use serde::Serialize;

use crate::admin::consumers::ConsumerRow;
use crate::admin::next::Command;
use crate::admin::serial;
use crate::admin::status::BacklogCounts;
use crate::admin::table::{Column, Columns};
use crate::admin::words::{any, compact, counted, in_words, with_commas, yes};

/// Expected course of the lag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outlook {
    /// Nothing is left.
    Done,
    /// The lag ends.
    Ends,
    /// The lag does not shrink.
    Never,
}

/// Forecast at the present rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Expected course.
    pub outlook: Outlook,
    /// Change of the lag per second, negative while it shrinks.
    pub per_second: f64,
    /// Time until nothing is left.
    #[serde(rename = "within_seconds", serialize_with = "serial::seconds_if_any")]
    pub within: Option<Duration>,
    /// Sentence.
    pub what: String,
}

impl Forecast {
    /// `None` if the consumer is absent.
    fn of(earlier: &ConsumerRow, now: &ConsumerRow, between: Duration) -> Option<Self> {
        let left = left(now)?;
        let per_second = rate(self::left(earlier)?, left, between);
        let handled = rate(earlier.floor?, now.floor?, between);
        let messages = counted(left, "message is", "messages are");
        let (outlook, within, what) = match time_for(left, -per_second) {
            _ if left == 0 => (Outlook::Done, None, "nothing is left".to_owned()),
            Some(within) => {
                let what = format!(
                    "{messages} left, {:.1} fewer each second; it catches up in {}",
                    -per_second,
                    in_words(within)
                );
                (Outlook::Ends, Some(within), what)
            }
            None if handled <= 0.0 => {
                let what = format!("{messages} left, and none are handled");
                (Outlook::Never, None, what)
            }
            None => {
                let what = format!(
                    "{messages} left; it passes {handled:.1} stream sequences each second and never catches up at this rate"
                );
                (Outlook::Never, None, what)
            }
        };
        Some(Self::new(outlook, per_second, within, what))
    }

    /// Forecast of an estimated backlog; `None` if a count is exact: it is not comparable.
    pub fn of_backlog(earlier: &BacklogCounts, now: &BacklogCounts, between: Duration) -> Option<Self> {
        if earlier.pending_is_exact || now.pending_is_exact {
            return None;
        }
        let left = now.pending_estimate;
        let per_second = rate(earlier.pending_estimate, left, between);
        let messages = format!("about {} messages are pending", with_commas(left));
        let within = time_for(left, -per_second);
        let (outlook, what) = match within {
            Some(within) => {
                let (fewer, within) = (-per_second, in_words(within));
                let what = format!("{messages}, {fewer:.1} fewer each second; all are published in {within}");
                (Outlook::Ends, what)
            }
            None => (
                Outlook::Never,
                format!("{messages}, {per_second:.1} more each second"),
            ),
        };
        Some(Self::new(outlook, per_second, within, what))
    }

    fn new(outlook: Outlook, per_second: f64, within: Option<Duration>, what: String) -> Self {
        Self {
            outlook,
            per_second: (per_second * 100.0).round() / 100.0,
            within,
            what,
        }
    }
}

fn left(row: &ConsumerRow) -> Option<u64> {
    Some(row.undelivered? + row.unacknowledged.unwrap_or_default())
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with two digits")]
fn rate(earlier: u64, now: u64, between: Duration) -> f64 {
    (now as f64 - earlier as f64) / between.as_secs_f64()
}

/// Longer times are no forecast.
#[expect(clippy::cast_precision_loss, reason = "a forecast is shown with one unit")]
fn time_for(amount: u64, per_second: f64) -> Option<Duration> {
    const CENTURY: f64 = 100.0 * 365.0 * 86_400.0;
    let seconds = amount as f64 / per_second;
    (per_second > 0.0 && seconds < CENTURY).then(|| Duration::from_secs_f64(seconds))
}

/// Consumer list row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ListedConsumer {
    /// The consumer.
    #[serde(flatten)]
    pub row: ConsumerRow,
    /// Forecast, if the consumer was observed twice.
    pub forecast: Option<Forecast>,
    /// Time until the stream deletes the oldest message of the consumer.
    #[serde(rename = "expires_in_seconds", serialize_with = "serial::seconds_if_any")]
    pub expires_in: Option<Duration>,
}

impl ListedConsumer {
    /// A consumer that was observed once.
    pub fn new(row: ConsumerRow) -> Self {
        Self {
            row,
            forecast: None,
            expires_in: None,
        }
    }

    /// `earlier`: the first observation, and the time since. `max_age`: of the stream.
    pub fn observed(
        mut row: ConsumerRow,
        earlier: Option<(&ConsumerRow, Duration)>,
        max_age: Option<Duration>,
    ) -> Self {
        if let Some((earlier, between)) = earlier {
            row.look_back(earlier, between);
        }
        Self {
            forecast: earlier.and_then(|(earlier, between)| Forecast::of(earlier, &row, between)),
            expires_in: max_age
                .zip(row.oldest)
                .map(|(age, oldest)| age.saturating_sub(oldest)),
            row,
        }
    }

    fn outlook(&self) -> String {
        let expiry = self.expires_in.map(|left| {
            format!(
                "its oldest message is deleted by the stream in {}",
                in_words(left)
            )
        });
        let forecast = self.forecast.as_ref().map(|forecast| forecast.what.clone());
        expiry.into_iter().chain(forecast).collect::<Vec<_>>().join("; ")
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
        Column::new("forecast", Self::outlook),
    ];
}

#[cfg(test)]
mod tests {
    use outbox::core::Backlog;

    use super::*;

    fn consumer(left: u64, floor: u64) -> ConsumerRow {
        let mut row = crate::admin::consumers::dead("billing", 0);
        (row.undelivered, row.floor) = (Some(left), Some(floor));
        row
    }

    #[test]
    fn a_consumer_catches_up_or_never_does() {
        let check = |earlier: (u64, u64), now: (u64, u64), outlook, what: &str| {
            let earlier = consumer(earlier.0, earlier.1);
            let between = Duration::from_secs(10);
            let found = Forecast::of(&earlier, &consumer(now.0, now.1), between).expect("a forecast");
            assert_eq!((found.outlook, found.what.as_str()), (outlook, what));
        };
        let ends = "100 messages are left, 10.0 fewer each second; it catches up in 10 s";
        check((200, 1), (100, 101), Outlook::Ends, ends);
        let never = "200 messages are left; it passes 5.0 stream sequences each second and never catches up at this rate";
        check((100, 1), (200, 51), Outlook::Never, never);
        let none = "1 message is left, and none are handled";
        check((1, 1), (1, 1), Outlook::Never, none);
        check((1, 1), (0, 2), Outlook::Done, "nothing is left");
    }

    #[test]
    fn estimated_backlog_has_a_rate_and_an_end() {
        let about = |estimate, is_exact| BacklogCounts {
            pending_is_exact: is_exact,
            ..BacklogCounts::from(Backlog {
                pending_estimate: estimate,
                ..Backlog::default()
            })
        };
        let found = |earlier, now| {
            let between = Duration::from_secs(10);
            let found = Forecast::of_backlog(&about(earlier, false), &now, between)?;
            Some((
                found.outlook,
                found.within.map(|within| within.as_secs()),
                found.what,
            ))
        };
        let ends =
            "about 2,000,000 messages are pending, 8000.0 fewer each second; all are published in 4 min";
        let ends = (Outlook::Ends, Some(250), ends.to_owned());
        assert_eq!(found(2_080_000, about(2_000_000, false)), Some(ends));
        let grows = "about 2,000,000 messages are pending, 100.0 more each second";
        let grows = (Outlook::Never, None, grows.to_owned());
        assert_eq!(found(1_999_000, about(2_000_000, false)), Some(grows));
        assert_eq!(found(200_000, about(99_000, true)), None);
    }

    #[test]
    fn unread_expiry_precedes_the_forecast() {
        let mut now = consumer(1, 1);
        now.oldest = Some(Duration::from_secs(3000));
        let between = Duration::from_secs(10);
        let max_age = Some(Duration::from_secs(3600));
        let listed = ListedConsumer::observed(now, Some((&consumer(1, 1), between)), max_age);
        assert_eq!(
            listed.outlook(),
            "its oldest message is deleted by the stream in 10 min; 1 message is left, and none are handled"
        );
    }
}
