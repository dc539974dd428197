//! Checks whether the cause of a failure still holds.
//!
//! [`Holds::Still`] and [`Holds::Gone`] need proof; everything else is [`Holds::Unknown`].

use std::collections::BTreeMap;
use std::fmt;

use outbox::core::{
    Aggregate, FailureClass, FoundMessage, Message, MessageId, MessageStatus, OutboxReader, RelayHealth,
    StoreError,
};
use serde::Serialize;

use crate::admin::next::{Command, Next};
use crate::admin::of_aggregate::unpublished;
use crate::admin::pause::{PauseRow, pauses};

/// Maximum messages checked per preview.
pub const RECHECKED_MAX: usize = 100;

/// Whether a cause holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// A retry would fail or wait.
    Still,
    /// Unknown until a retry.
    Unknown,
    /// The cause no longer holds.
    Gone,
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Obstacle to publishing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// Damaged row.
    Unreadable,
    /// The message itself is wrong: its subject, a header or, according to a stored error, its
    /// size.
    Unsendable,
    /// Missing stream.
    NoStream,
    /// Uncaptured subject.
    NotCaptured,
    /// Sealed stream.
    Sealed,
    /// The stream does not acknowledge (`no_ack`).
    Unconfirmed,
    /// Full stream.
    Full,
    /// Oversized message.
    TooLarge,
    /// Publishing is paused.
    Paused,
    /// No live relay.
    NoRelay,
    /// The relay cannot reach the broker, fetch or settle.
    RelayUnhealthy,
}

/// Why the broker would reject a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Obstacle.
    pub obstacle: Obstacle,
    /// Description, one sentence.
    pub what: String,
    /// Repair.
    pub next: Next,
}

/// A cause shared by messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CauseNow {
    /// Whether the cause holds.
    pub holds: Holds,
    /// The cause; `None` if unknown.
    pub obstacle: Option<Obstacle>,
    /// Messages with this cause, among the first [`RECHECKED_MAX`].
    pub messages: u64,
    /// Description of the first message's failure.
    pub what: String,
    /// Next step.
    #[serde(flatten)]
    pub next: Next,
}

/// Checks the causes of the first [`RECHECKED_MAX`] messages, persistent causes first. Published
/// messages are listed only if the broker would reject them now. `broker` returns why the broker
/// would reject a message; an error means an unreadable stream.
///
/// # Errors
///
/// [`StoreError`].
pub async fn causes(
    store: &impl OutboxReader,
    messages: &[MessageId],
    broker: Result<impl Fn(&Message) -> Option<Refused>, String>,
) -> Result<Vec<CauseNow>, StoreError> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let surroundings = Surroundings::read(store).await?;
    let mut found: BTreeMap<(Holds, Option<Obstacle>), CauseNow> = BTreeMap::new();
    for id in messages.iter().take(RECHECKED_MAX) {
        let Some(message) = store.find(*id).await? else {
            continue;
        };
        let Some(cause) = judge(&message, &surroundings, broker.as_ref()) else {
            continue;
        };
        let known = found.entry((cause.holds, cause.obstacle)).or_insert(cause);
        known.messages += 1;
    }
    Ok(found.into_values().collect())
}

/// As [`causes`], for the first unpublished message of an aggregate.
///
/// # Errors
///
/// [`StoreError`].
pub async fn causes_of_aggregate(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
    broker: Result<impl Fn(&Message) -> Option<Refused>, String>,
) -> Result<Vec<CauseNow>, StoreError> {
    let first = unpublished(store, aggregate).await?.into_iter().next();
    let first: Vec<MessageId> = first.into_iter().map(|message| message.id).collect();
    causes(store, &first, broker).await
}

struct Surroundings {
    pauses: Vec<PauseRow>,
    relays: usize,
    health: BTreeMap<u16, RelayHealth>,
}

impl Surroundings {
    async fn read(store: &impl OutboxReader) -> Result<Self, StoreError> {
        let pauses = pauses(store).await?;
        let relays = store.relays().await?;
        let mut health = BTreeMap::new();
        for partition in store.partitions().await? {
            let owner = relays.iter().find(|relay| partition.owner == Some(relay.owner));
            health.extend(owner.map(|owner| (partition.partition, owner.health)));
        }
        Ok(Self {
            pauses,
            relays: relays.len(),
            health,
        })
    }
}

fn cause(holds: Holds, obstacle: Option<Obstacle>, what: String, next: Next) -> CauseNow {
    CauseNow {
        holds,
        obstacle,
        messages: 0,
        what,
        next,
    }
}

fn judge(
    found: &FoundMessage,
    surroundings: &Surroundings,
    broker: Result<&impl Fn(&Message) -> Option<Refused>, &String>,
) -> Option<CauseNow> {
    use Obstacle as O;

    let stored = &found.stored;
    let message = match &found.message {
        Ok(message) => message,
        Err(reason) => {
            let next = Command::from("outbox show").arg(stored.id).into();
            let what = format!("its row cannot be read: {reason}");
            return Some(cause(Holds::Still, Some(O::Unreadable), what, next));
        }
    };
    let refused = broker.map(|broker| broker(message));
    if let Ok(Some(refused)) = refused {
        let Refused { obstacle, what, next } = refused;
        return Some(cause(Holds::Still, Some(obstacle), what, next));
    }
    let still = |obstacle, what: String, next: Next| Some(cause(Holds::Still, Some(obstacle), what, next));
    let aggregate_type = &stored.aggregate.aggregate_type;
    if let Some(pause) = surroundings
        .pauses
        .iter()
        .find(|pause| pause.covers(aggregate_type))
    {
        let what = format!("it would wait: {}", pause.sentence());
        return still(O::Paused, what, pause.unpause().into());
    }
    if surroundings.relays == 0 {
        let what = "it would wait: no relay is alive".to_owned();
        return still(O::NoRelay, what, Next::start_relay());
    }
    let health = surroundings.health.get(&stored.aggregate.partition());
    if health == Some(&RelayHealth::Unhealthy) {
        let what = "it would wait: the relay of its partition is unhealthy";
        return still(O::RelayUnhealthy, what.to_owned(), "outbox relay list".into());
    }
    if let Err(error) = refused {
        let what = format!("the stream could not be checked: {error}");
        return Some(cause(Holds::Unknown, None, what, "outbox doctor".into()));
    }
    (stored.status != MessageStatus::Published)
        .then(|| recorded(stored.error.as_deref(), health == Some(&RelayHealth::Healthy)))
}

fn recorded(error: Option<&str>, is_healthy: bool) -> CauseNow {
    let Some(error) = error else {
        let what = "no stored error, and no obstacle now".to_owned();
        return cause(Holds::Unknown, None, what, Next::default());
    };
    match obstacle_of(error) {
        // Only a relay that publishes now proves that the outage is over.
        Some(Obstacle::RelayUnhealthy) if !is_healthy => {
            let what = format!(
                "the broker did not answer, and the relay of its partition has not published since: {error}"
            );
            cause(
                Holds::Unknown,
                Some(Obstacle::RelayUnhealthy),
                what,
                Next::default(),
            )
        }
        // Account limits and full disks appear only on publishing.
        Some(Obstacle::Full) => {
            let what = format!(
                "the stream would accept it now; limits of account and servers show only on a retry: {error}"
            );
            cause(Holds::Unknown, Some(Obstacle::Full), what, Next::default())
        }
        Some(obstacle) => {
            let what = format!("no longer applies: {error}");
            cause(Holds::Gone, Some(obstacle), what, Next::default())
        }
        None => {
            let what = format!("known only after a retry: {error}");
            cause(Holds::Unknown, None, what, Next::default())
        }
    }
}

pub(crate) fn obstacle_of(error: &str) -> Option<Obstacle> {
    match FailureClass::of_stored(error)? {
        FailureClass::Unknown => Some(Obstacle::RelayUnhealthy),
        FailureClass::Backpressure => Some(Obstacle::Full),
        FailureClass::Permanent => Some(Obstacle::Unsendable),
        FailureClass::Uncaptured => Some(Obstacle::NotCaptured),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_is_gone_only_with_proof() {
        let check = |error: Option<&str>, is_healthy, holds, obstacle| {
            let now = recorded(error, is_healthy);
            assert_eq!((now.holds, now.obstacle), (holds, obstacle), "{error:?}");
        };
        let silent = Some("unknown: message 1 was not confirmed by stream `EVENTS` within 5s");
        check(None, true, Holds::Unknown, None);
        check(silent, true, Holds::Gone, Some(Obstacle::RelayUnhealthy));
        check(silent, false, Holds::Unknown, Some(Obstacle::RelayUnhealthy));
        check(
            Some("backpressure: stream `EVENTS` is full or throttles, message 1 waits"),
            false,
            Holds::Unknown,
            Some(Obstacle::Full),
        );
        check(
            Some("unclassified: stream `EVENTS` refused message 1 on subject `a`"),
            true,
            Holds::Unknown,
            None,
        );
    }
}
