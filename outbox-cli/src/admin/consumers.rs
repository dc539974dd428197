//! Lag and problems of durable consumers.

use std::time::Duration;

use outbox::core::{ConsumerStanding, Subscriber};
use outbox::inbox::{ConsumerLag, Consumers, ConsumersError, DEAD_LETTERS_COUNT_MAX};
use serde::Serialize;

use crate::admin::next::{Command, Next};
use crate::admin::serial;
use crate::admin::verdict::{Reason, State};
use crate::admin::words::{at_least, counted, in_words};

/// A consumer is behind if its oldest unacknowledged message has at least this age. Same value as
/// the alert in `outbox-cli/monitoring`.
pub const CONSUMER_BEHIND_AFTER: Duration = Duration::from_secs(60);

const NO_ROWS: &str = "this database has no row of the consumer; its inbox may be in another database, or \
                       its strategy writes no rows";

/// State of a consumer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConsumerRow {
    /// Consumer name.
    pub consumer: String,
    /// State of the worst problem.
    pub state: State,
    /// Problems, worst first.
    pub reasons: Vec<Reason>,
    /// Undelivered messages; `None` if the consumer is absent.
    pub undelivered: Option<u64>,
    /// Delivered but unacknowledged messages.
    pub unacknowledged: Option<u64>,
    /// Age of the oldest undelivered or unacknowledged message.
    #[serde(rename = "oldest_seconds", serialize_with = "serial::seconds_if_any")]
    pub oldest: Option<Duration>,
    /// Ack floor, as a stream sequence.
    pub floor: Option<u64>,
    /// Whether a process has an open pull request.
    pub is_receiving: Option<bool>,
    /// Open dead letters, at most 10,000. `None`: see `unseen`.
    pub dead_letters_open: Option<u64>,
    /// Dead letters marked for retry, at most 10,000 with the open ones. `None`: see `unseen`.
    pub dead_letters_marked: Option<u64>,
    /// Reason of a pause; `None` without one, or see `unseen`.
    pub paused: Option<String>,
    /// Why dead letters and pauses could not be read.
    pub unseen: Option<String>,
    #[serde(skip)]
    max_unacknowledged: Option<u64>,
    #[serde(skip)]
    watched: Option<Watched>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watched {
    over: Duration,
    asked: bool,
    /// Whether the ack floor rose, or fewer messages were unacknowledged.
    advanced: bool,
    busy: bool,
}

impl ConsumerRow {
    fn new(consumer: &str, standing: Option<ConsumerStanding>) -> Self {
        let standing = standing.as_ref();
        Self {
            consumer: consumer.to_owned(),
            state: State::Healthy,
            reasons: Vec::new(),
            undelivered: standing.map(|standing| standing.undelivered),
            unacknowledged: standing.map(|standing| standing.unacknowledged),
            oldest: standing.and_then(|standing| standing.oldest_age),
            floor: standing.map(|standing| standing.floor),
            is_receiving: standing.map(|standing| standing.is_receiving),
            dead_letters_open: None,
            dead_letters_marked: None,
            paused: None,
            unseen: None,
            max_unacknowledged: standing.and_then(|standing| standing.max_unacknowledged),
            watched: None,
        }
    }

    fn of_lag(consumer: &str, lag: ConsumerLag) -> Self {
        let mut row = Self {
            paused: lag.paused,
            ..Self::new(consumer, lag.on_stream)
        };
        // The inbox has no rows before the consumer's first acknowledgement.
        if lag.has_rows || row.floor.unwrap_or_default() == 0 {
            row.dead_letters_open = Some(lag.dead_letters_open);
            row.dead_letters_marked = Some(lag.dead_letters_marked);
        } else {
            row.unseen = Some(NO_ROWS.to_owned());
        }
        row.judge();
        row
    }

    fn seen(&self) -> Watched {
        self.watched.unwrap_or(Watched {
            over: Duration::ZERO,
            asked: self.is_receiving == Some(true),
            advanced: false,
            busy: self.unacknowledged > Some(0),
        })
    }

    /// Whether another observation could show a pull request or progress.
    pub fn is_doubtful(&self) -> bool {
        let seen = self.seen();
        let is_old = self.oldest >= Some(CONSUMER_BEHIND_AFTER);
        let is_idle = self.undelivered > Some(0) && !seen.asked && !seen.busy;
        let hangs = seen.busy && is_old && !seen.advanced;
        self.paused.is_none() && (is_idle || hangs)
    }

    /// Adds an observation of the consumer, `over` after the first observation.
    pub fn look_again(&mut self, later: &ConsumerStanding, over: Duration) {
        let seen = self.seen();
        self.watched = Some(Watched {
            over,
            asked: seen.asked || later.is_receiving,
            advanced: seen.advanced
                || Some(later.floor) > self.floor
                || Some(later.unacknowledged) < self.unacknowledged,
            busy: seen.busy || later.unacknowledged > 0,
        });
        self.judge();
    }

    /// Adds an earlier observation, made `over` before the first.
    pub fn look_back(&mut self, earlier: &Self, over: Duration) {
        let seen = self.seen();
        self.watched = Some(Watched {
            over: over + seen.over,
            asked: seen.asked || earlier.is_receiving == Some(true),
            advanced: seen.advanced
                || self.floor > earlier.floor
                || self.unacknowledged < earlier.unacknowledged,
            busy: seen.busy || earlier.unacknowledged > Some(0),
        });
        self.judge();
    }

    fn judge(&mut self) {
        self.reasons = self.of_stream().into_iter().chain(self.of_letters()).collect();
        self.state = self.reasons.first().map_or(State::Healthy, |reason| reason.state);
    }

    pub(super) fn of_letters(&self) -> Option<Reason> {
        let what = match self.dead_letters_open.unwrap_or_default() {
            0 => return None,
            open @ DEAD_LETTERS_COUNT_MAX.. => format!("{} dead letters are open", at_least(open)),
            open => counted(open, "dead letter is open", "dead letters are open"),
        };
        let next = Command::from("outbox dead-letters groups").option("--consumer", &self.consumer);
        Some(Reason::new(State::Degraded, what, next))
    }

    pub(super) fn of_stream(&self) -> Option<Reason> {
        let degraded = |what: String, next: Next| Some(Reason::new(State::Degraded, what, next));
        if let Some(reason) = &self.paused {
            let next = Command::from("outbox consumers resume")
                .arg(&self.consumer)
                .into();
            return degraded(format!("it is paused: {reason}"), next);
        }
        let (Some(undelivered), Some(unacknowledged)) = (self.undelivered, self.unacknowledged) else {
            let what = "the broker has no consumer of this name: its inbox has never run, or the consumer was removed";
            return degraded(what.to_owned(), "outbox consumers list".into());
        };
        let forecast = |advice: &str| Next::and_advice("outbox consumers list --forecast", advice);
        let next = forecast("if the lag does not shrink, check that the service runs, and read its log");
        if let Some(what) = handed_no_more(undelivered, unacknowledged, self.max_unacknowledged) {
            return degraded(what, next);
        }
        let age = self.oldest.filter(|oldest| *oldest >= CONSUMER_BEHIND_AFTER);
        match (self.watched, age) {
            (Some(watched), Some(age)) if unacknowledged > 0 && !watched.advanced => {
                let what = format!(
                    "{} unacknowledged, and the ack floor did not move within {}; the oldest has been on the \
                     stream for {}",
                    counted(unacknowledged, "message is", "messages are"),
                    in_words(watched.over),
                    in_words(age)
                );
                degraded(what, next)
            }
            (Some(watched), _) if undelivered > 0 && !watched.asked && !watched.busy => {
                let what = format!(
                    "{} not delivered, and no process requested messages within {}",
                    counted(undelivered, "message is", "messages are"),
                    in_words(watched.over)
                );
                degraded(what, forecast("if the lag does not shrink, start the service"))
            }
            (_, Some(age)) if undelivered + unacknowledged > 0 => {
                let what = format!(
                    "it is behind: its oldest message has been on the stream for {} ({undelivered} undelivered, {unacknowledged} unacknowledged)",
                    in_words(age)
                );
                degraded(what, next)
            }
            _ => None,
        }
    }
}

pub(crate) fn handed_no_more(undelivered: u64, unacknowledged: u64, max: Option<u64>) -> Option<String> {
    let max = max.filter(|max| undelivered > 0 && unacknowledged >= *max)?;
    Some(format!(
        "{} not delivered: it has {} unacknowledged, the limit is {max} (`max_ack_pending`); the server delivers more after acknowledgements",
        counted(undelivered, "message is", "messages are"),
        counted(unacknowledged, "message", "messages")
    ))
}

/// State of the named consumers and all paused ones, by name. Two database queries.
///
/// # Errors
///
/// [`ConsumersError`].
pub async fn consumers<S: Subscriber>(
    consumers: &Consumers<S>,
    names: impl IntoIterator<Item = String>,
) -> Result<Vec<ConsumerRow>, ConsumersError> {
    let lags = consumers.lags(names).await?;
    Ok(lags
        .into_iter()
        .map(|(name, lag)| ConsumerRow::of_lag(&name, lag))
        .collect())
}

/// State of the named consumers on the stream, in this order. Dead letters and pauses stay
/// unknown.
///
/// # Errors
///
/// [`ConsumersError`].
pub async fn consumers_on_stream<S: Subscriber>(
    consumers: &Consumers<S>,
    names: impl IntoIterator<Item = String>,
) -> Result<Vec<ConsumerRow>, ConsumersError> {
    let mut rows = Vec::new();
    for name in names {
        let mut row = ConsumerRow::new(&name, consumers.standing(&name).await?);
        row.judge();
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
pub(crate) fn dead(consumer: &str, open: u64) -> ConsumerRow {
    let standing = ConsumerStanding {
        undelivered: 0,
        unacknowledged: 0,
        max_unacknowledged: None,
        oldest_age: None,
        floor: 1,
        is_receiving: true,
    };
    let mut row = ConsumerRow {
        dead_letters_open: Some(open),
        dead_letters_marked: Some(0),
        ..ConsumerRow::new(consumer, Some(standing))
    };
    row.judge();
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn standing() -> ConsumerStanding {
        ConsumerStanding {
            undelivered: 0,
            unacknowledged: 0,
            max_unacknowledged: Some(3),
            oldest_age: None,
            floor: 6,
            is_receiving: true,
        }
    }

    fn row(undelivered: u64, unacknowledged: u64) -> ConsumerRow {
        let standing = ConsumerStanding {
            undelivered,
            unacknowledged,
            ..standing()
        };
        ConsumerRow::new("billing", Some(standing))
    }

    #[track_caller]
    fn check(row: &ConsumerRow, words: &str) {
        let mut row = row.clone();
        row.judge();
        let what: Vec<&str> = row.reasons.iter().map(|reason| reason.what.as_str()).collect();
        assert_eq!(what.len(), usize::from(!words.is_empty()), "{what:?}");
        assert!(what.iter().all(|what| what.contains(words)), "{what:?}");
    }

    #[test]
    fn consumer_at_ack_limit_is_full() {
        let mut full = row(2, 3);
        let what = "2 messages are not delivered: it has 3 messages unacknowledged, the limit is 3 (`max_ack_pending`); the server delivers more after acknowledgements";
        check(&full, what);
        full.is_receiving = Some(false);
        check(&full, "the limit is 3");
        full.paused = Some("stocktaking".to_owned());
        check(&full, "it is paused");
        check(&row(2, 2), "");
        check(&row(0, 3), "");
        let unbounded = ConsumerRow {
            max_unacknowledged: None,
            ..row(2, 3)
        };
        check(&unbounded, "");
    }

    #[test]
    fn single_observation_is_not_idle() {
        let silent = ConsumerRow {
            is_receiving: Some(false),
            ..row(1, 0)
        };
        check(&silent, "");
        let mut watched = silent.clone();
        watched.look_back(&silent, Duration::from_secs(3));
        let what = "1 message is not delivered, and no process requested messages within 3 s";
        check(&watched, what);
        let asked = ConsumerRow {
            is_receiving: Some(true),
            ..silent.clone()
        };
        watched.look_back(&asked, MINUTE);
        check(&watched, "");
        watched = silent.clone();
        let busy = ConsumerRow {
            unacknowledged: Some(1),
            ..silent
        };
        watched.look_back(&busy, MINUTE);
        check(&watched, "");
    }

    #[test]
    fn old_unacknowledged_messages_mean_a_hang() {
        let hanging = ConsumerRow {
            oldest: Some(MINUTE * 5),
            ..row(0, 2)
        };
        check(&hanging, "it is behind");
        let mut later = hanging.clone();
        later.look_back(&hanging, MINUTE);
        check(&later, "did not move");
        later.floor = Some(7);
        later.look_back(&hanging, MINUTE);
        check(&later, "it is behind");
        let fewer = ConsumerRow {
            unacknowledged: Some(1),
            ..hanging.clone()
        };
        later = fewer;
        later.look_back(&hanging, MINUTE);
        check(&later, "it is behind");
        let recent = ConsumerRow {
            oldest: Some(MINUTE / 2),
            ..row(0, 2)
        };
        check(&recent, "");
    }

    #[test]
    fn open_letters_and_missing_consumer_are_degraded() {
        let mut dead = ConsumerRow {
            dead_letters_open: Some(DEAD_LETTERS_COUNT_MAX),
            ..row(0, 0)
        };
        dead.judge();
        assert_eq!(dead.state, State::Degraded);
        assert_eq!(dead.reasons[0].what, "10,000+ dead letters are open");
        let mut absent = ConsumerRow::new("billing", None);
        check(&absent, "has no consumer of this name");
        absent.paused = Some("stocktaking".to_owned());
        check(&absent, "it is paused");
    }
}
