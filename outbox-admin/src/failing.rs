//! Finds messages that keep failing although the broker is reachable.
//!
//! NATS answers alike for a missing stream and a missing leader, so the relay retries. A message
//! with a fixed subject is dead after `attempts_max`; all others are retried forever.

use std::num::NonZeroU32;

use outbox_core::{
    FailureClass, MessageId, MessageStatus, OutboxReader, Selection, StoreError, StoredMessage,
};

const LOOKED_AT: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

/// With the default back-off, these failures take about 13 seconds, longer than a leader election.
const FAILURES_MIN: u32 = 8;

/// Messages that keep failing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// Failing messages among the first 1,000 waiting messages.
    pub messages: u64,
    /// The message with most failures; uncaptured subjects come first.
    pub id: MessageId,
    /// Number of this message's failures.
    pub failures: u32,
    /// This message's last error.
    pub error: String,
    /// This message's subject, if no stream captures it.
    pub subject: Option<String>,
}

/// Searches the first 1,000 deferred messages, in one or two indexed queries.
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

    const UNCAPTURED: &str = "uncaptured: no stream captures subject `orders.special` of message 1";

    #[test]
    fn uncaptured_subject_is_stuck_other_failures_degraded() {
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
