//! Messages whose publishing fails again and again, although the relays reach the broker.
//!
//! A relay cannot tell a subject that no stream captures from a stream whose cluster elects a
//! leader, so the relay retries the message. A message with a subject of its own becomes a dead
//! letter at `attempts_max`; any other message is retried without end. Nothing is changed here.

use std::num::NonZeroU32;

use outbox_core::{MessageId, MessageStatus, OutboxReader, Selection, StoreError, StoredMessage};

/// The messages that are looked at: the first of those that wait, by their row ids.
const LOOKED_AT: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

/// Failures from which on a failure is not taken for one that passes: with the default back-off, it has lasted for 13 seconds by then, longer than a cluster takes
/// to elect a leader.
const FAILURES_MIN: u32 = 8;

/// How `outbox-nats` begins the error of a message whose subject no stream takes.
const NO_STREAM: &str = "no stream takes subject `";

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

/// Looks for messages that fail again and again, among the first 1,000 that wait; `None` if there is none. One statement, by the index of waiting rows.
///
/// # Errors
///
/// [`StoreError`].
pub async fn failing(store: &impl OutboxReader) -> Result<Option<Failing>, StoreError> {
    let waiting = Selection::all().status(MessageStatus::Waiting);
    Ok(Failing::of(&store.list(&waiting, LOOKED_AT).await?))
}

impl Failing {
    fn of(waiting: &[StoredMessage]) -> Option<Self> {
        let failing = waiting
            .iter()
            .filter(|row| row.failures >= FAILURES_MIN && row.error.is_some());
        let worst = failing.clone().max_by_key(|row| {
            let has_no_stream = row
                .error
                .as_deref()
                .is_some_and(|error| error.contains(NO_STREAM));
            (has_no_stream, row.failures)
        })?;
        let error = worst.error.clone().unwrap_or_default();
        Some(Self {
            messages: failing.count() as u64,
            id: worst.id,
            failures: worst.failures,
            subject: subject(&error).map(str::to_owned),
            error,
        })
    }
}

/// The subject that an error names.
fn subject(error: &str) -> Option<&str> {
    let (_, rest) = error.split_once(NO_STREAM)?;
    rest.split_once('`').map(|(subject, _)| subject)
}

#[cfg(test)]
mod tests {
    use outbox_core::{Aggregate, EventId};
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;
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

    const NOBODY: &str =
        "no stream takes subject `orders.special` of message 1; provision stream `SHOP` with it";

    #[test]
    fn a_subject_that_no_stream_takes_is_stuck_and_anything_else_that_goes_on_failing_is_degraded() {
        assert_eq!(Failing::of(&[]), None);
        assert_eq!(
            Failing::of(&[row(1, 7, NOBODY), row(2, 0, "")]),
            None,
            "it may pass"
        );
        let other = Failing::of(&[row(1, 9, "no answer"), row(2, 7, NOBODY)]).expect("it fails");
        assert_eq!((other.messages, other.subject.as_deref()), (1, None));
        let reason = other.reason();
        assert_eq!(reason.state, State::Degraded);
        assert!(reason.next.line().starts_with("outbox why "), "{reason:?}");
        assert_eq!(other.diagnosis("SHOP"), None);
        let both = Failing::of(&[row(1, 9, "no answer"), row(2, 8, NOBODY)]).expect("they fail");
        assert_eq!(
            (both.messages, both.subject.as_deref()),
            (2, Some("orders.special"))
        );
        assert_eq!(both.reason().state, State::Stuck);
        let diagnosis = both.diagnosis("SHOP").expect("a finding");
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
