//! Messages whose publishing fails again and again, although the relays reach the broker.
//!
//! A relay cannot tell a subject that no stream captures from a stream whose cluster elects a
//! leader, so the relay retries the message. A message with a subject of its own becomes a dead
//! letter at `attempts_max`; any other message is retried without end. Nothing is changed here.

use std::num::NonZeroU32;

use outbox_core::{
    FailureClass, MessageId, MessageStatus, OutboxReader, Selection, StoreError, StoredMessage,
};

/// The messages that are looked at: the first of those that wait, by their row ids.
const LOOKED_AT: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

/// Failures from which on a failure is not taken for one that passes: with the default back-off, it has lasted for 13 seconds by then, longer than a cluster takes
/// to elect a leader.
const FAILURES_MIN: u32 = 8;

/// Messages that fail again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failing {
    /// How many of the first 1,000 that wait.
    pub messages: u64,
    /// The one with the most failures; of those whose subject no stream takes, if there is one.
    pub id: MessageId,
    /// How often it has failed.
    pub failures: u32,
    /// Its last error.
    pub error: String,
    /// Its subject, if no stream takes it.
    pub subject: Option<String>,
}

/// Looks for messages that fail again and again, among the first 1,000 that wait; `None` if there is none. One statement by the index of waiting rows, and a
/// second one for the subject.
///
/// # Errors
///
/// [`StoreError`].
pub async fn failing(store: &impl OutboxReader) -> Result<Option<Failing>, StoreError> {
    let waiting = Selection::all().status(MessageStatus::Waiting);
    let waiting = store.list(&waiting, LOOKED_AT).await?;
    let Some((worst, messages)) = worst(&waiting) else {
        return Ok(None);
    };
    let message = match is_uncaptured(worst) {
        true => store.find(worst.id).await?.and_then(|found| found.message.ok()),
        false => None,
    };
    Ok(Some(Failing {
        messages,
        id: worst.id,
        failures: worst.failures,
        error: worst.error.clone().unwrap_or_default(),
        subject: message.and_then(|message| message.subject),
    }))
}

/// The message with the most failures, and how many messages fail.
fn worst(waiting: &[StoredMessage]) -> Option<(&StoredMessage, u64)> {
    let failing = waiting
        .iter()
        .filter(|row| row.failures >= FAILURES_MIN && row.error.is_some());
    let count = failing.clone().count() as u64;
    let worst = failing.max_by_key(|row| (is_uncaptured(row), row.failures))?;
    Some((worst, count))
}

fn is_uncaptured(row: &StoredMessage) -> bool {
    let class = row.error.as_deref().and_then(FailureClass::of_stored);
    class == Some(FailureClass::Uncaptured)
}

#[cfg(test)]
mod tests {
    use outbox_core::{Aggregate, EventId};
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;
    use crate::next::Command;
    use crate::verdict::State;

    fn row(number: u128, failures: u32, error: &str) -> StoredMessage {
        StoredMessage {
            row_id: 1,
            id: MessageId::from(Uuid::from_u128(number)),
            event_id: EventId::from(Uuid::from_u128(number)),
            aggregate: Aggregate::new("order", "1"),
            sequence: None,
            event_type: "order.placed".to_owned(),
            status: MessageStatus::Waiting,
            attempts: 0,
            failures,
            error: Some(error.to_owned()).filter(|error| !error.is_empty()),
            halts: false,
            created_at: OffsetDateTime::UNIX_EPOCH,
            published_at: None,
        }
    }

    const UNCAPTURED: &str = "uncaptured: no stream takes subject `orders.special` of message 1";

    #[test]
    fn an_uncaptured_subject_is_stuck_and_any_other_lasting_failure_is_degraded() {
        assert_eq!(worst(&[]), None);
        let may_pass = [row(1, 7, UNCAPTURED), row(2, 0, "")];
        assert_eq!(worst(&may_pass), None);
        let other = [row(1, 9, "unknown: no answer"), row(2, 7, UNCAPTURED)];
        assert_eq!(worst(&other), Some((&other[0], 1)));
        let both = [row(1, 9, "unknown: no answer"), row(2, 8, UNCAPTURED)];
        assert_eq!(worst(&both), Some((&both[1], 2)));
        let failing = |subject: Option<&str>| Failing {
            messages: 1,
            id: both[1].id,
            failures: 8,
            error: String::new(),
            subject: subject.map(str::to_owned),
        };
        let other = failing(None);
        let reason = other.reason();
        assert_eq!(reason.state, State::Degraded);
        assert_eq!(reason.next, Command::from("outbox why").arg(other.id).into());
        assert_eq!(other.diagnosis("SHOP"), None);
        let uncaptured = failing(Some("orders.special"));
        assert_eq!(uncaptured.reason().state, State::Stuck);
        let diagnosis = uncaptured.diagnosis("SHOP").expect("a finding");
        assert!(
            diagnosis
                .next
                .advice
                .as_ref()
                .is_some_and(|advice| advice.ends_with("--subjects=orders.special")),
            "{diagnosis:?}"
        );
    }
}
