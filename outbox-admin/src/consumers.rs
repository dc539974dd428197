//! How far consumers are behind, and what somebody should look at.

use std::time::Duration;

use outbox_core::Subscriber;
use outbox_inbox::{ConsumerLag, Consumers, ConsumersError};
use serde::Serialize;

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
    let mut reasons = Vec::new();
    match (&lag.on_stream, &lag.paused) {
        (None, _) => reasons.push(Reason::new(
            State::Degraded,
            "the broker has no consumer of this name: its inbox has never run, or the consumer was removed",
            "outbox consumers list",
        )),
        (Some(_), Some(reason)) => {
            reasons.push(Reason::new(
                State::Degraded,
                format!("it is paused: {reason}"),
                format!("outbox consumers resume {}", quoted(consumer)),
            ));
        }
        (Some(standing), None) if standing.undelivered > 0 && !standing.is_receiving => {
            let messages = counted(standing.undelivered, "message is", "messages are");
            let what = format!("{messages} not delivered, and no process asks for messages at this moment");
            // One that is busy asks again within moments: a second look tells.
            let next = "outbox consumers list --forecast; if it handles none, start its service";
            reasons.push(Reason::new(State::Degraded, what, next));
        }
        (Some(_), None) => {}
    }
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
