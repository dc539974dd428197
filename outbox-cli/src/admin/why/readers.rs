//! Explains messages at consumers.
//!
//! Invariant: a cause needs proof by an inbox row or by the consumer's last sequence. Without
//! either, a delivered message is only described.

use outbox::core::{EventId, StoredMessage};

use super::finding::{finding, named};
use super::numbers::{self, Numbers};
use super::{Cause, Finding};
use crate::admin::next::Command;
use crate::admin::timeline::{Effect, EffectOutcome, EffectRow};
use crate::admin::verdict::State;
use crate::admin::words::counted;

/// A consumer of the stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reader {
    /// Consumer name.
    pub consumer: String,
    /// Last delivered stream sequence.
    pub delivered: u64,
    /// Ack floor, as a stream sequence.
    pub floor: u64,
    /// Unacknowledged messages.
    pub unacknowledged: u64,
    /// Limit of unacknowledged messages; `None`: no limit.
    pub max_ack_pending: Option<u64>,
    /// Whether a process of the consumer has an open pull request.
    pub is_receiving: bool,
    /// Reason of a pause.
    pub paused: Option<String>,
    /// Position at strategy `sequence`, if known.
    pub numbers: Option<Numbers>,
}

/// Consumers of a message, with their inbox rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readers {
    /// Durable consumers with matching filters.
    pub readers: Vec<Reader>,
    /// Earlier events ([`earlier_events`](super::earlier_events)).
    pub earlier: Vec<(EventId, u64)>,
    /// Inbox rows.
    pub rows: Vec<EffectRow>,
    /// Unreadable parts.
    pub unseen: Vec<String>,
}

pub(super) fn judge(
    stored: &StoredMessage,
    stream_sequence: u64,
    readers: &Readers,
) -> (Vec<Finding>, String) {
    let mut findings = Vec::new();
    let mut said = Vec::new();
    for reader in &readers.readers {
        let rows = readers
            .rows
            .iter()
            .filter(|row| row.effect.consumer == reader.consumer);
        let rows: Vec<&EffectRow> = rows.collect();
        match of_reader(stored, stream_sequence, reader, &readers.earlier, &rows) {
            Judged::Amiss(mut found) => {
                found.stream_sequence = Some(stream_sequence);
                findings.push(found);
            }
            Judged::Said(text) => said.push(text),
        }
    }
    if readers.readers.is_empty() && readers.unseen.is_empty() {
        said.push("no durable consumer of the stream matches it".to_owned());
    }
    said.extend(
        readers
            .unseen
            .iter()
            .map(|unseen| format!("not checked: {unseen}")),
    );
    findings.sort_by_key(|found| std::cmp::Reverse(found.state));
    (findings, said.join("; "))
}

enum Judged {
    Amiss(Finding),
    Said(String),
}

fn of_reader(
    stored: &StoredMessage,
    stream_sequence: u64,
    reader: &Reader,
    earlier: &[(EventId, u64)],
    rows: &[&EffectRow],
) -> Judged {
    let (name, consumer) = (named(stored), &reader.consumer);
    let own = rows.iter().find(|row| row.event_id == stored.event_id);
    let effect = own.map(|row| &row.effect);
    match effect.map(|effect| (effect.outcome, effect)) {
        Some((EffectOutcome::DeadLetter, effect)) => {
            return Judged::Amiss(dead_letter(stored, reader, effect));
        }
        Some((EffectOutcome::Failed, effect)) => {
            let failed = counted(effect.attempts, "time", "times");
            let error = effect.error.as_deref().unwrap_or("no stored error");
            let what = format!("{name} has failed {failed} in consumer {consumer}: {error}");
            // Failed messages are redelivered regardless of `max_ack_pending`.
            let waits = paused(stored, reader, &what).or_else(|| idle(stored, reader, &what));
            return Judged::Amiss(waits.unwrap_or_else(|| {
                let what = format!("{what}. It is retried");
                lags(Cause::ConsumerFailed, stored, what)
            }));
        }
        Some((outcome, _)) => return Judged::Said(format!("consumer {consumer}: {outcome}")),
        None => {}
    }
    let was_handed = reader.delivered >= stream_sequence;
    let numbers = reader
        .numbers
        .filter(|numbers| was_handed && !numbers::is_left(*numbers, earlier, rows));
    if let Some(said) = numbers.and_then(|numbers| numbers::passed(stored, consumer, numbers)) {
        return Judged::Said(said);
    }
    if reader.floor >= stream_sequence {
        return Judged::Said(format!(
            "consumer {consumer} has acknowledged it and keeps no row of it"
        ));
    }
    if let Some(gap) = numbers.and_then(|numbers| numbers::gap(stored, stream_sequence, consumer, numbers)) {
        return Judged::Amiss(gap);
    }
    if was_handed {
        // Before a redelivery runs, the inbox creates a row without an error. Only a row with an
        // error is a failure.
        let has_failed =
            |row: &&&EffectRow| row.effect.outcome == EffectOutcome::Failed && row.effect.error.is_some();
        let earlier = rows.iter().find(has_failed);
        return Judged::Said(handed(consumer, earlier.copied()));
    }
    let what = format!(
        "{name} is on the stream with stream sequence {stream_sequence}, and consumer {consumer} received messages up to {}",
        reader.delivered
    );
    let waits = paused(stored, reader, &what)
        .or_else(|| full(stored, reader, &what))
        .or_else(|| idle(stored, reader, &what));
    Judged::Amiss(waits.unwrap_or_else(|| {
        let what = format!("{what}. The consumer has not reached it yet");
        lags(Cause::ConsumerBehind, stored, what)
    }))
}

fn dead_letter(stored: &StoredMessage, reader: &Reader, effect: &Effect) -> Finding {
    let what = format!(
        "{} is a dead letter of consumer {} after {}: {}",
        named(stored),
        reader.consumer,
        counted(effect.attempts, "failed attempt", "failed attempts"),
        effect.error.as_deref().unwrap_or("no stored error")
    );
    let next = ["outbox dead-letters list", "outbox dead-letters retry"].map(|command| {
        Command::from(command)
            .option("--consumer", &reader.consumer)
            .option("--aggregate", &stored.aggregate)
    });
    finding(
        Cause::ConsumerDeadLetter,
        State::Degraded,
        Some(stored),
        what,
        next,
    )
}

fn handed(consumer: &str, earlier: Option<&EffectRow>) -> String {
    let Some(earlier) = earlier else {
        return format!(
            "consumer {consumer} received it, without a result yet: its handler runs, or it waits for an earlier message of its aggregate"
        );
    };
    format!(
        "consumer {consumer} received it, without a result yet. The earlier event {} of its aggregate has failed there {}: {}. If the consumer keeps \
         the order, this event waits for it",
        earlier.event_id,
        counted(earlier.effect.attempts, "time", "times"),
        earlier.effect.error.as_deref().unwrap_or_default()
    )
}

fn paused(stored: &StoredMessage, reader: &Reader, what: &str) -> Option<Finding> {
    let reason = reader.paused.as_ref()?;
    let next = Command::from("outbox consumers resume").arg(&reader.consumer);
    let what = format!("{what}. The consumer is paused: {reason}");
    Some(finding(
        Cause::ConsumerPaused,
        State::Degraded,
        Some(stored),
        what,
        [next],
    ))
}

fn full(stored: &StoredMessage, reader: &Reader, what: &str) -> Option<Finding> {
    let (max, unacknowledged) = (reader.max_ack_pending?, reader.unacknowledged);
    if unacknowledged < max {
        return None;
    }
    let messages = counted(unacknowledged, "message", "messages");
    let what = format!(
        "{what}. It has {messages} unacknowledged, the limit is {max} (`max_ack_pending`). Each of these runs, is retried, or waits for an earlier event or a \
         version that handles it; the server delivers more after acknowledgements"
    );
    Some(lags(Cause::ConsumerFull, stored, what))
}

/// A busy process does not pull continuously.
fn idle(stored: &StoredMessage, reader: &Reader, what: &str) -> Option<Finding> {
    if reader.is_receiving || reader.unacknowledged > 0 {
        return None;
    }
    let what = format!("{what}. No process of the consumer was requesting messages");
    Some(lags(Cause::ConsumerIdle, stored, what))
}

fn lags(cause: Cause, stored: &StoredMessage, what: String) -> Finding {
    finding(
        cause,
        State::Degraded,
        Some(stored),
        what,
        ["outbox consumers list"],
    )
}

#[cfg(test)]
mod tests {
    use outbox::core::{Aggregate, MessageId, MessageStatus};
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn stored() -> StoredMessage {
        StoredMessage {
            row_id: 1,
            id: MessageId::from(Uuid::from_u128(1)),
            event_id: EventId::from(Uuid::from_u128(1)),
            aggregate: Aggregate::new("order", "1"),
            sequence: Some(1),
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

    fn reader() -> Reader {
        Reader {
            consumer: "billing".to_owned(),
            delivered: 6,
            floor: 6,
            is_receiving: true,
            ..Reader::default()
        }
    }

    fn judged(
        change: impl FnOnce(&mut Reader),
        outcome: Option<EffectOutcome>,
    ) -> (Option<(Cause, Option<u64>)>, String) {
        let mut reader = reader();
        change(&mut reader);
        let row = |outcome| EffectRow {
            event_id: stored().event_id,
            effect: Effect {
                consumer: "billing".to_owned(),
                outcome,
                attempts: 1,
                at: None,
                error: Some("no price".to_owned()),
            },
        };
        let readers = Readers {
            readers: vec![reader],
            rows: outcome.into_iter().map(row).collect(),
            ..Readers::default()
        };
        let (findings, said) = judge(&stored(), 7, &readers);
        assert!(
            findings.iter().all(|found| !found.next.is_empty()),
            "{findings:?}"
        );
        let found = findings.first().map(|found| (found.cause, found.stream_sequence));
        (found, said)
    }

    #[test]
    fn blocking_consumer_is_reported() {
        let check = |change: fn(&mut Reader), outcome, cause| {
            assert_eq!(judged(change, outcome).0, Some((cause, Some(7))));
        };
        let (dead, failed) = (Some(EffectOutcome::DeadLetter), Some(EffectOutcome::Failed));
        check(|_| {}, dead, Cause::ConsumerDeadLetter);
        check(
            |reader| reader.is_receiving = false,
            dead,
            Cause::ConsumerDeadLetter,
        );
        check(|_| {}, failed, Cause::ConsumerFailed);
        check(|reader| reader.is_receiving = false, failed, Cause::ConsumerIdle);
        check(|_| {}, None, Cause::ConsumerBehind);
        check(|reader| reader.is_receiving = false, None, Cause::ConsumerIdle);
        check(
            |reader| reader.paused = Some("stocktaking".to_owned()),
            None,
            Cause::ConsumerPaused,
        );
        check(
            |reader| {
                reader.numbers = Some(Numbers {
                    last: 0,
                    failing: Some(1),
                });
            },
            failed,
            Cause::ConsumerFailed,
        );
    }

    #[test]
    fn consumer_at_ack_limit_is_full() {
        let full = |reader: &mut Reader| {
            reader.is_receiving = false;
            (reader.unacknowledged, reader.max_ack_pending) = (3, Some(3));
        };
        let cause = |found: Option<(Cause, Option<u64>)>| found.map(|(cause, _)| cause);
        assert_eq!(cause(judged(full, None).0), Some(Cause::ConsumerFull));
        let paused = |reader: &mut Reader| {
            full(reader);
            reader.paused = Some("stocktaking".to_owned());
        };
        assert_eq!(cause(judged(paused, None).0), Some(Cause::ConsumerPaused));
        let failed = Some(EffectOutcome::Failed);
        assert_eq!(cause(judged(full, failed).0), Some(Cause::ConsumerFailed));
        for max in [None, Some(4)] {
            let busy = |reader: &mut Reader| {
                full(reader);
                reader.max_ack_pending = max;
            };
            assert_eq!(
                cause(judged(busy, None).0),
                Some(Cause::ConsumerBehind),
                "{max:?}"
            );
        }
        let handed = |reader: &mut Reader| {
            full(reader);
            reader.delivered = 7;
        };
        assert_eq!(judged(handed, None).0, None);
    }

    #[test]
    fn consumer_gap_of_a_delivered_message_is_reported() {
        let at = |last| {
            move |reader: &mut Reader| {
                reader.delivered = 9;
                reader.numbers = Some(Numbers { last, failing: None });
            }
        };
        let judge_fifth = |change: &dyn Fn(&mut Reader)| {
            let mut reader = reader();
            change(&mut reader);
            let readers = Readers {
                readers: vec![reader],
                ..Readers::default()
            };
            let stored = StoredMessage {
                sequence: Some(5),
                ..stored()
            };
            judge(&stored, 7, &readers)
        };
        let (findings, said) = judge_fifth(&at(3));
        let found: Vec<_> = findings
            .iter()
            .map(|found| (found.cause, found.stream_sequence))
            .collect();
        assert_eq!(
            (found, said),
            (vec![(Cause::ConsumerGap, Some(7))], String::new())
        );
        assert_eq!(judge_fifth(&at(4)).0, []);
        let (findings, said) = judge_fifth(&at(5));
        assert!(findings.is_empty() && said.contains("is at #5"), "{said}");
        let left = |reader: &mut Reader| {
            at(3)(reader);
            reader.floor = 9;
        };
        let (findings, said) = judge_fifth(&left);
        assert!(
            findings.is_empty() && said.contains("has acknowledged it"),
            "{said}"
        );
        let behind = |reader: &mut Reader| {
            at(3)(reader);
            reader.delivered = 6;
        };
        assert_eq!(judge_fifth(&behind).0[0].cause, Cause::ConsumerBehind);
    }

    fn said_behind(outcome: EffectOutcome, error: Option<&str>) -> String {
        let effect = Effect {
            consumer: "billing".to_owned(),
            outcome,
            attempts: 2,
            at: None,
            error: error.map(str::to_owned),
        };
        let readers = Readers {
            readers: vec![Reader {
                delivered: 7,
                ..reader()
            }],
            rows: vec![EffectRow {
                event_id: EventId::from(Uuid::from_u128(2)),
                effect,
            }],
            ..Readers::default()
        };
        let (findings, said) = judge(&stored(), 7, &readers);
        assert_eq!(findings, []);
        said
    }

    #[test]
    fn earlier_failed_event_is_described_not_a_cause() {
        let waits = "this event waits for it";
        let said = said_behind(EffectOutcome::Failed, Some("no price"));
        assert!(
            said.contains("failed there 2 times: no price") && said.contains(waits),
            "{said}"
        );
        assert!(!said_behind(EffectOutcome::Failed, None).contains(waits));
        assert!(!said_behind(EffectOutcome::Handled, None).contains(waits));
    }

    #[test]
    fn healthy_consumer_is_no_cause() {
        let check = |change: fn(&mut Reader), outcome, words: &str| {
            let (found, said) = judged(change, outcome);
            assert_eq!(found, None);
            assert!(said.contains(words), "{said}");
        };
        let idle = |reader: &mut Reader| reader.is_receiving = false;
        check(idle, Some(EffectOutcome::Handled), "billing: handled");
        check(|reader| reader.floor = 7, None, "keeps no row of it");
        check(|reader| reader.delivered = 7, None, "without a result yet");
        let (_, said) = judge(&stored(), 7, &Readers::default());
        assert!(said.contains("no durable consumer"), "{said}");
    }
}
