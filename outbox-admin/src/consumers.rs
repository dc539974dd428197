//! How far consumers are behind, and what somebody should look at.

use std::time::Duration;

use outbox_core::{ConsumerStanding, Subscriber};
use outbox_inbox::{ConsumerLag, Consumers, ConsumersError};
use serde::Serialize;

use crate::next::Next;
use crate::serial;
use crate::status::{Reason, State};
use crate::words::{counted, quoted};

/// How a consumer stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConsumerRow {
    /// Its name.
    pub consumer: String,
    /// The worst state of all reasons.
    pub state: State,
    /// What is wrong, the worst first.
    pub reasons: Vec<Reason>,
    /// Messages that were not delivered yet; `None` if the broker has no consumer of this name.
    pub undelivered: Option<u64>,
    /// Messages that were delivered and not acknowledged.
    pub unacknowledged: Option<u64>,
    /// How long the oldest of both has been on the stream.
    #[serde(rename = "oldest_seconds", serialize_with = "serial::seconds_if_any")]
    pub oldest: Option<Duration>,
    /// The stream sequence up to which everything is acknowledged.
    pub floor: Option<u64>,
    /// Whether a process asks for messages at this moment.
    pub is_receiving: Option<bool>,
    /// Dead letters about which nobody has decided; counted to 10,000.
    pub dead_letters_open: u64,
    /// Dead letters that are to be tried again; counted to 10,000 together with the open ones.
    pub dead_letters_marked: u64,
    /// Why it is paused; `None` if it is not.
    pub paused: Option<String>,
}

impl ConsumerRow {
    fn new(consumer: &str, lag: ConsumerLag) -> Self {
        let mut reasons = reasons(consumer, &lag);
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.state));
        let standing = lag.on_stream;
        Self {
            consumer: consumer.to_owned(),
            state: reasons.first().map_or(State::Well, |reason| reason.state),
            reasons,
            undelivered: standing.as_ref().map(|standing| standing.undelivered),
            unacknowledged: standing.as_ref().map(|standing| standing.unacknowledged),
            oldest: standing.as_ref().and_then(|standing| standing.oldest_age),
            floor: standing.as_ref().map(|standing| standing.floor),
            is_receiving: standing.as_ref().map(|standing| standing.is_receiving),
            dead_letters_open: lag.dead_letters_open,
            dead_letters_marked: lag.dead_letters_marked,
            paused: lag.paused,
        }
    }
}

fn reasons(consumer: &str, lag: &ConsumerLag) -> Vec<Reason> {
    let of_stream = keeps_waiting(consumer, lag.on_stream.as_ref(), lag.paused.as_deref());
    let mut reasons: Vec<Reason> = of_stream.into_iter().collect();
    if lag.dead_letters_open > 0 {
        let what = counted(
            lag.dead_letters_open,
            "dead letter waits for a decision",
            "dead letters wait for a decision",
        );
        let next = format!("outbox dead-letters list --consumer {}", quoted(consumer));
        reasons.push(Reason::new(State::Degraded, what, next));
    }
    reasons
}

/// What keeps the messages on the stream from the consumer.
fn keeps_waiting(
    consumer: &str,
    standing: Option<&ConsumerStanding>,
    paused: Option<&str>,
) -> Option<Reason> {
    let Some(standing) = standing else {
        return Some(Reason::new(
            State::Degraded,
            "the broker has no consumer of this name: its inbox has never run, or the consumer was removed",
            "outbox consumers list",
        ));
    };
    let (what, next) = if let Some(reason) = paused {
        let next = format!("outbox consumers resume {}", quoted(consumer));
        (format!("it is paused: {reason}"), next.into())
    } else if let Some(what) = handed_no_more(
        standing.undelivered,
        standing.unacknowledged,
        standing.max_unacknowledged,
    ) {
        // Its processes need not ask, so nobody knows from one look whether they run.
        let advice =
            "if it handles none, see that its service runs, and look in its log for what fails or hangs";
        (what, Next::and_advice("outbox consumers list --forecast", advice))
    } else if standing.undelivered > 0 && !standing.is_receiving {
        let messages = counted(standing.undelivered, "message is", "messages are");
        let what = format!("{messages} not delivered, and no process asks for messages at this moment");
        // One that is busy asks again within moments: a second look tells.
        let advice = "if it handles none, start its service";
        (what, Next::and_advice("outbox consumers list --forecast", advice))
    } else {
        return None;
    };
    Some(Reason::new(State::Degraded, what, next))
}

/// The sentence about a consumer for which messages wait, and that has as many unacknowledged as it may have; `None` of any other.
pub(crate) fn handed_no_more(undelivered: u64, unacknowledged: u64, max: Option<u64>) -> Option<String> {
    let max = max.filter(|max| undelivered > 0 && unacknowledged >= *max)?;
    Some(format!(
        "{} not delivered: it has {} unacknowledged and may have {max} (`max_ack_pending`), and is handed no more until some are acknowledged",
        counted(undelivered, "message is", "messages are"),
        counted(unacknowledged, "message", "messages")
    ))
}

/// Says how a consumer stands.
///
/// # Errors
///
/// [`ConsumersError`].
pub async fn consumer<S: Subscriber>(
    consumers: &Consumers<S>,
    name: &str,
) -> Result<ConsumerRow, ConsumersError> {
    let lag = consumers.lag(name).await?;
    Ok(ConsumerRow::new(name, lag))
}

/// Says how each of these consumers stands, and each one that is paused, by their names. The database is asked twice.
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
        .map(|(name, lag)| ConsumerRow::new(&name, lag))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A consumer of which a process asks for messages, and that has none.
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

    fn said(change: impl FnOnce(&mut ConsumerStanding), paused: Option<&str>) -> Option<String> {
        let mut standing = standing();
        change(&mut standing);
        let reason = keeps_waiting("billing", Some(&standing), paused)?;
        assert_eq!(reason.state, State::Degraded, "{reason:?}");
        assert!(reason.next.line().starts_with("outbox consumers "), "{reason:?}");
        Some(reason.what)
    }

    #[test]
    fn a_consumer_that_is_handed_no_more_is_degraded() {
        let full = |standing: &mut ConsumerStanding| {
            (standing.undelivered, standing.unacknowledged) = (2, 3);
        };
        let what = "2 messages are not delivered: it has 3 messages unacknowledged and may have 3 (`max_ack_pending`), and is handed no more until some are acknowledged";
        assert_eq!(said(full, None).as_deref(), Some(what));
        // Its processes have no room, and need not ask.
        let silent = |standing: &mut ConsumerStanding| {
            full(standing);
            standing.is_receiving = false;
        };
        assert_eq!(said(silent, None).as_deref(), Some(what));
        let paused = said(silent, Some("stocktaking"));
        assert_eq!(paused.as_deref(), Some("it is paused: stocktaking"));
    }

    #[test]
    fn a_consumer_that_has_room_or_nothing_to_come_is_not_full() {
        let waits = |undelivered, unacknowledged, max| {
            move |standing: &mut ConsumerStanding| {
                (standing.undelivered, standing.unacknowledged) = (undelivered, unacknowledged);
                standing.max_unacknowledged = max;
            }
        };
        assert_eq!(said(waits(2, 2, Some(3)), None), None);
        assert_eq!(said(waits(0, 3, Some(3)), None), None);
        assert_eq!(said(waits(2, 3, None), None), None);
        let idle = |standing: &mut ConsumerStanding| {
            waits(1, 2, Some(3))(standing);
            standing.is_receiving = false;
        };
        let what = "1 message is not delivered, and no process asks for messages at this moment";
        assert_eq!(said(idle, None).as_deref(), Some(what));
    }

    #[test]
    fn a_consumer_that_the_broker_does_not_have_is_degraded() {
        let absent = keeps_waiting("billing", None, Some("stocktaking")).unwrap();
        assert!(absent.what.contains("no consumer of this name"), "{absent:?}");
    }
}
