//! Explains messages at consumers with strategy `sequence`.
//!
//! Invariant: explanations hold whether or not the handler accepts gaps, because no row stores that
//! option.

use outbox::core::{EventId, StoredMessage};

use super::finding::{finding, named};
use super::{Cause, Finding};
use crate::admin::next::Command;
use crate::admin::timeline::{EffectOutcome, EffectRow};
use crate::admin::verdict::State;

/// What a consumer with strategy `sequence` has handled of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// Sequences up to this one are done or skipped; 0: none.
    pub last: u64,
    /// A later sequence that failed.
    pub failing: Option<u64>,
}

pub(super) fn passed(stored: &StoredMessage, consumer: &str, numbers: Numbers) -> Option<String> {
    let last = numbers.last;
    (stored.sequence? <= last).then(|| {
        format!(
            "consumer {consumer} (strategy `sequence`) is at #{last} of its aggregate: sequences up to #{last} are done or skipped"
        )
    })
}

/// The gap that the message waits for. `None` if the consumer's last sequence proves no gap. A
/// consumer without a stored sequence may start at any message.
pub(super) fn gap(
    stored: &StoredMessage,
    stream_sequence: u64,
    consumer: &str,
    numbers: Numbers,
) -> Option<Finding> {
    let Numbers { last, failing } = numbers;
    let number = stored.sequence.filter(|number| *number > last)?;
    let aggregate = &stored.aggregate;
    let failing = failing.filter(|failing| (last + 1..number).contains(failing));
    let waits = match failing {
        Some(failing) => format!("#{failing} has failed there and is retried, and this event waits for it"),
        None if last == 0 || last + 1 == number => return None,
        None => format!(
            "{} not been handled there and would come first. Unless the handler accepts gaps (`gap = \"0s\"`), this event waits until the time `gap` of the \
             handler is over",
            have(last + 1, number - 1)
        ),
    };
    let at = match last {
        0 => format!("has handled nothing of {aggregate} yet"),
        _ => format!("is at #{last} of {aggregate}"),
    };
    let what = format!(
        "{} is on the stream with stream sequence {stream_sequence}, and was delivered to consumer {consumer}. The consumer uses strategy `sequence` and {at}: {waits}",
        named(stored)
    );
    let next = Command::from("outbox timeline").arg(aggregate);
    Some(finding(
        Cause::ConsumerGap,
        State::Degraded,
        Some(stored),
        what,
        [next],
    ))
}

/// Whether the consumer stopped using strategy `sequence`. An inbox row with a sequence above the
/// consumer's last sequence proves it.
pub(super) fn is_left(numbers: Numbers, earlier: &[(EventId, u64)], rows: &[&EffectRow]) -> bool {
    let is_done = |event: EventId| {
        let over = [EffectOutcome::Handled, EffectOutcome::DeadLetter];
        rows.iter()
            .any(|row| row.event_id == event && over.contains(&row.effect.outcome))
    };
    earlier
        .iter()
        .any(|(event, number)| *number > numbers.last && is_done(*event))
}

fn have(first: u64, last: u64) -> String {
    match first == last {
        true => format!("#{first} has"),
        false => format!("#{first}–#{last} have"),
    }
}

#[cfg(test)]
mod tests {
    use outbox::core::{Aggregate, MessageId, MessageStatus};
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;
    use crate::admin::timeline::Effect;

    fn stored(sequence: Option<u64>) -> StoredMessage {
        StoredMessage {
            row_id: 1,
            id: MessageId::from(Uuid::from_u128(1)),
            event_id: EventId::from(Uuid::from_u128(1)),
            aggregate: Aggregate::new("order", "1"),
            sequence,
            event_type: "order.placed".to_owned(),
            status: MessageStatus::Published,
            attempts: 0,
            failures: 0,
            error: None,
            halts: false,
            created_at: OffsetDateTime::UNIX_EPOCH,
            published_at: None,
        }
    }

    fn at(last: u64, failing: Option<u64>) -> Numbers {
        Numbers { last, failing }
    }

    #[test]
    fn unhandled_earlier_sequence_is_a_gap() {
        let check = |numbers: Numbers, words: &str| {
            let found = gap(&stored(Some(5)), 7, "billing", numbers).unwrap();
            assert_eq!((found.cause, found.state), (Cause::ConsumerGap, State::Degraded));
            assert_eq!(found.next, ["outbox timeline order/1"]);
            assert!(found.what.contains(words), "{found:?}");
        };
        check(at(3, None), "is at #3 of order/1: #4 has not been handled there");
        check(at(1, None), "order/1: #2–#4 have not been handled there");
        check(at(3, None), "Unless the handler accepts gaps");
        check(at(1, Some(3)), "#3 has failed there and is retried");
        check(at(3, Some(4)), "#4 has failed there");
        check(
            at(0, Some(4)),
            "has handled nothing of order/1 yet: #4 has failed",
        );
        check(at(3, Some(6)), "#4 has not been handled there");
    }

    #[test]
    fn next_sequence_is_no_gap() {
        let no_gap = |number: Option<u64>, numbers: Numbers| {
            assert_eq!(gap(&stored(number), 7, "billing", numbers), None, "{numbers:?}");
        };
        no_gap(Some(5), at(4, None));
        no_gap(Some(5), at(4, Some(5)));
        no_gap(Some(5), at(0, None));
        no_gap(Some(5), at(0, Some(9)));
        no_gap(Some(5), at(5, None));
        no_gap(Some(5), at(9, Some(10)));
        no_gap(None, at(1, None));
    }

    #[test]
    fn sequence_up_to_position_is_done_or_skipped() {
        let said = |number: Option<u64>| passed(&stored(number), "billing", at(5, None));
        for number in [4, 5] {
            assert!(said(Some(number)).is_some_and(|said| said.contains("is at #5")));
        }
        assert_eq!(said(Some(6)), None);
        assert_eq!(said(None), None);
    }

    #[test]
    fn later_row_proves_a_strategy_change() {
        let event = |number| EventId::from(Uuid::from_u128(number));
        let row = |number, outcome| EffectRow {
            event_id: event(number),
            effect: Effect {
                consumer: "billing".to_owned(),
                outcome,
                attempts: 1,
                at: None,
                error: None,
            },
        };
        let earlier = [(event(30), 3), (event(40), 4)];
        let at_third = Numbers {
            last: 3,
            failing: None,
        };
        let left = |row: EffectRow| is_left(at_third, &earlier, &[&row]);
        assert!(left(row(40, EffectOutcome::Handled)));
        assert!(left(row(40, EffectOutcome::DeadLetter)));
        assert!(!left(row(40, EffectOutcome::Failed)), "retried");
        assert!(
            !left(row(30, EffectOutcome::Handled)),
            "the position is not before it"
        );
    }
}
