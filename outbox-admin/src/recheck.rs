//! Whether the cause of a failure still holds, before the same is tried again.
//!
//! Invariants: nothing is published and nothing changed. `still` is said only if a fact proves that a message would fail or wait now; `gone` only if what failed is known
//! and does not hold any more. Everything else is `unknown`. Not here: causes in handlers, see `letters::causes`.

use std::collections::BTreeMap;
use std::fmt;

use outbox_core::{
    Aggregate, FailureClass, Fitness, FoundMessage, Message, MessageId, MessageStatus, OutboxReader,
    StoreError,
};
use serde::Serialize;

use crate::next::{Command, Next};
use crate::of_aggregate::unpublished;
use crate::pause::{PauseRow, pauses};

/// Most messages of a preview whose causes are looked at.
pub const RECHECKED_MAX: usize = 100;

/// Whether a cause holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Holds {
    /// It holds: the same would happen again.
    Still,
    /// It cannot be known without trying.
    Unknown,
    /// It does not hold any more.
    Gone,
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What stands in the way of a message, or stood in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Obstacle {
    /// Its row cannot be read.
    Unreadable,
    /// It cannot be sent: its subject, a header or, of a stored error, its size.
    Unsendable,
    /// There is no stream.
    NoStream,
    /// The stream does not capture its subject.
    NotCaptured,
    /// The stream is sealed.
    Sealed,
    /// The stream confirms nothing.
    Unconfirmed,
    /// The stream is full.
    Full,
    /// It is too large.
    TooLarge,
    /// Publishing of its aggregate type, or of everything, is paused.
    Paused,
    /// No relay is alive.
    NoRelay,
    /// Its relay does not reach the broker, or cannot fetch or settle.
    RelayAiling,
    /// The broker has no such consumer.
    ConsumerAbsent,
    /// The consumer is paused.
    ConsumerPaused,
    /// One look saw no process of the consumer that asks for messages.
    ConsumerIdle,
    /// A handler failed.
    Handler,
}

/// Why the broker would refuse a message, found out without publishing it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What stands in the way.
    pub obstacle: Obstacle,
    /// What is so, in a sentence.
    pub what: String,
    /// What mends it.
    pub next: Next,
}

/// Whether the cause of a failure still holds, for messages that have it in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CauseNow {
    /// Whether it holds.
    pub holds: Holds,
    /// What it is; `None` if that is not known.
    pub obstacle: Option<Obstacle>,
    /// How many messages it is said of, out of the first [`RECHECKED_MAX`].
    pub messages: u64,
    /// What is so, in a sentence; with several messages, of the first one.
    pub what: String,
    /// What helps.
    #[serde(flatten)]
    pub next: Next,
}

/// Says whether the causes still hold of which messages have failed: of the first [`RECHECKED_MAX`] of these. What still holds comes first. A published message has
/// failed of nothing, and is only named if it would be refused now.
///
/// `broker` says why it would refuse a message, or `None`; it is an error, for people, if the broker could not be asked. Reads each message by its id, and pauses,
/// relays and partitions once.
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
        // It may have been published and deleted since.
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

/// As [`causes`], for the message that a blocked aggregate waits for: its first one that is not published.
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

/// What holds for all messages, or for those of a partition.
struct Surroundings {
    pauses: Vec<PauseRow>,
    relays: usize,
    /// What the owner of each partition says of itself.
    fitness: BTreeMap<u16, Fitness>,
}

impl Surroundings {
    async fn read(store: &impl OutboxReader) -> Result<Self, StoreError> {
        let pauses = pauses(store).await?;
        let relays = store.relays().await?;
        let mut fitness = BTreeMap::new();
        for partition in store.partitions().await? {
            let owner = relays.iter().find(|relay| partition.owner == Some(relay.owner));
            fitness.extend(owner.map(|owner| (partition.partition, owner.fitness)));
        }
        Ok(Self {
            pauses,
            relays: relays.len(),
            fitness,
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

/// `None`: nothing has failed, and nothing stands in the way.
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
    let fitness = surroundings.fitness.get(&stored.aggregate.partition());
    if fitness == Some(&Fitness::Ailing) {
        let what =
            "it would wait: the relay of its partition does not reach the broker, or cannot fetch or settle";
        return still(O::RelayAiling, what.to_owned(), "outbox relay list".into());
    }
    if let Err(error) = refused {
        let what = format!("the stream could not be asked: {error}");
        return Some(cause(Holds::Unknown, None, what, "outbox doctor".into()));
    }
    (stored.status != MessageStatus::Published)
        .then(|| recorded(stored.error.as_deref(), fitness == Some(&Fitness::Fit)))
}

/// What is to be said of a failure whose error was kept, if nothing stands in the way now.
fn recorded(error: Option<&str>, is_fit: bool) -> CauseNow {
    let Some(error) = error else {
        let what = "no error was kept, and nothing stands in the way now".to_owned();
        return cause(Holds::Unknown, None, what, Next::default());
    };
    match obstacle_of(error) {
        // Only a relay that publishes now shows that it was an outage which is over.
        Some(Obstacle::RelayAiling) if !is_fit => {
            let what = format!(
                "the broker did not answer, and the relay of its partition has published nothing since to tell: {error}"
            );
            cause(Holds::Unknown, Some(Obstacle::RelayAiling), what, Next::default())
        }
        // The stream has room now. Limits of the account and the servers' disks show only when something is published.
        Some(Obstacle::Full) => {
            let what = format!(
                "the stream itself would take it now, and whether account and servers would shows only when it is tried: {error}"
            );
            cause(Holds::Unknown, Some(Obstacle::Full), what, Next::default())
        }
        Some(obstacle) => {
            let what = format!("it does not hold any more: {error}");
            cause(Holds::Gone, Some(obstacle), what, Next::default())
        }
        None => {
            let what = format!("it shows only when it is tried: {error}");
            cause(Holds::Unknown, None, what, Next::default())
        }
    }
}

/// What stood in the way when a message failed, by the class with which its stored error begins.
pub(crate) fn obstacle_of(error: &str) -> Option<Obstacle> {
    match FailureClass::of_stored(error)? {
        FailureClass::Unknown => Some(Obstacle::RelayAiling),
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
    fn what_an_error_says_is_gone_only_if_it_can_be_known() {
        let check = |error: Option<&str>, is_fit, holds, obstacle| {
            let now = recorded(error, is_fit);
            assert_eq!((now.holds, now.obstacle), (holds, obstacle), "{error:?}");
        };
        let silent = Some("unknown: message 1 was not confirmed by stream `EVENTS` within 5s");
        check(None, true, Holds::Unknown, None);
        check(silent, true, Holds::Gone, Some(Obstacle::RelayAiling));
        check(silent, false, Holds::Unknown, Some(Obstacle::RelayAiling));
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
