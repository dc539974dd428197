//! Finds messages that keep failing although the broker is reachable.
//!
//! NATS answers alike for a missing stream and a missing leader, so the relay retries. A message
//! with a fixed subject is dead after `attempts_max`; all others are retried forever.

use std::num::NonZeroU32;

use outbox::core::{FailureClass, MessageStatus, OutboxReader, Selection, StoreError, StoredMessage};

use crate::admin::next::Command;
use crate::admin::verdict::{Reason, State};
use crate::admin::words::counted;

const LOOKED_AT: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

/// With the default back-off, these failures take about 13 seconds, longer than a leader election.
const FAILURES_MIN: u32 = 8;

/// A reason for messages that keep failing, among the first 1,000 deferred messages. Uncaptured
/// subjects come first.
pub(crate) async fn failing(store: &impl OutboxReader) -> Result<Option<Reason>, StoreError> {
    let waiting = Selection::all().status(MessageStatus::Waiting);
    let waiting = store.list(&waiting, LOOKED_AT).await?;
    Ok(worst(&waiting).map(|(worst, messages)| reason(worst, messages)))
}

fn reason(worst: &StoredMessage, messages: u64) -> Reason {
    let state = match is_uncaptured(worst) {
        true => State::Stuck,
        false => State::Degraded,
    };
    let what = format!(
        "{}, one of them {} times: {}",
        counted(messages, "message keeps failing", "messages keep failing"),
        worst.failures,
        worst.error.as_deref().unwrap_or_default()
    );
    Reason::new(state, what, Command::from("outbox why").arg(worst.id))
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
    use outbox::core::{Aggregate, EventId, MessageId};
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

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
        assert_eq!(reason(&other[0], 1).state, State::Degraded);
        assert_eq!(reason(&both[1], 2).state, State::Stuck);
    }
}
