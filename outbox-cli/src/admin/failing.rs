//! Finds messages that keep failing although the broker is reachable.
//!
//! NATS answers alike for a missing stream and a missing leader, so the relay retries. A message
//! with a fixed subject is dead after `attempts_max`; all others are retried forever.

use std::num::NonZeroU32;

use outbox::core::{FailureClass, MessageStatus, OutboxReader, Selection, StoreError, StoredMessage};

use crate::admin::doctor::{Check, Diagnosis};
use crate::admin::next::{Command, Next};
use crate::admin::verdict::{Reason, State};
use crate::admin::words::{counted, quoted};

const LOOKED_AT: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

/// With the default back-off, 8 failures take about 13 seconds, longer than a leader election.
const FAILURES_MIN: u32 = 8;

/// Messages that keep failing.
#[derive(Debug)]
pub struct Failing {
    messages: u64,
    worst: StoredMessage,
    /// The subject of the worst message, if no stream captures it.
    subject: Option<String>,
}

/// Searches the first 1,000 deferred messages. Uncaptured subjects come first.
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
        worst: worst.clone(),
        subject: message.and_then(|message| message.subject),
    }))
}

impl Failing {
    /// Failures other than an uncaptured subject may end by themselves.
    pub(crate) fn reason(&self) -> Reason {
        let Self { messages, worst, .. } = self;
        let state = match is_uncaptured(worst) {
            true => State::Stuck,
            false => State::Degraded,
        };
        let what = format!(
            "{}, one of them {} times: {}",
            counted(*messages, "message keeps failing", "messages keep failing"),
            worst.failures,
            worst.error.as_deref().unwrap_or_default()
        );
        Reason::new(state, what, Command::from("outbox why").arg(worst.id))
    }

    /// The finding; `None` if a stream captures the subject.
    pub fn diagnosis(&self, stream: &str) -> Option<Diagnosis> {
        let (subject, worst) = (self.subject.as_deref()?, &self.worst);
        let seen = format!(
            "message {} has failed {} times: {}",
            worst.id,
            worst.failures,
            worst.error.as_deref().unwrap_or_default()
        );
        let needed = "a stream that captures the subject of each event";
        let info = Command::from("nats stream info").arg(stream);
        let next = Next::and_advice(info, capture(stream, subject));
        Some(Diagnosis::new(
            Check::Stream,
            State::Stuck,
            (subject, seen),
            needed,
            next,
        ))
    }
}

/// Advice that adds a subject to a stream.
pub fn capture(stream: &str, subject: &str) -> String {
    format!(
        "then `nats stream edit {}` with --subjects for each present subject, and --subjects={}",
        quoted(stream),
        quoted(subject)
    )
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
        let failing = |worst: &StoredMessage, subject: Option<&str>| Failing {
            messages: 1,
            worst: worst.clone(),
            subject: subject.map(str::to_owned),
        };
        let other = failing(&other[0], None);
        assert_eq!(other.reason().state, State::Degraded);
        assert_eq!(other.diagnosis("SHOP"), None);
        let uncaptured = failing(&both[1], Some("orders.special"));
        assert_eq!(uncaptured.reason().state, State::Stuck);
        let advice = uncaptured.diagnosis("SHOP").expect("a finding").next.advice;
        assert!(advice.is_some_and(|advice| advice.ends_with("--subjects=orders.special")));
    }
}
