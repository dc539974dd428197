//! Doctor rules for streams and consumers.

use std::time::Duration;

use super::rules::span;
use super::stream::{StreamFacts, Wanted};
use super::{Check, Diagnosis};
use crate::admin::consumers::ConsumerRow;
use crate::admin::next::Next;
use crate::admin::stream_full;
use crate::admin::verdict::{Reason, State};

/// Required duplicate window: covers a usual outage plus a relay crash.
const WINDOW_NEEDED: Duration = Duration::from_mins(10);
/// The inbox must keep rows longer than `max_age` by this margin, because stream and inbox use
/// different clocks.
const MEMORY_MARGIN: Duration = Duration::from_hours(1);
/// Default limit of payload plus headers.
const MESSAGE_BYTES: usize = 1024 * 1024;

/// Default `max_bytes` of new streams: 10 GB.
pub const MAX_BYTES: u64 = 10_000_000_000;

/// Stream findings.
pub fn of_stream(stream: &StreamFacts, wanted: &Wanted) -> Vec<Diagnosis> {
    let mut found: Vec<Diagnosis> = full(stream).into_iter().collect();
    let mut check = |is_wrong: bool, check, seen: String, needed: String, next: Next| {
        if is_wrong {
            found.push(Diagnosis::new(check, State::Degraded, ("", seen), needed, next));
        }
    };
    times(stream, wanted, &mut check);
    bounds(stream, &mut check);
    keeping(stream, &mut check);
    found
}

fn full(stream: &StreamFacts) -> Option<Diagnosis> {
    let full = stream_full::reason(stream, 0)?;
    let (check, state) = match stream.drops_oldest {
        true => (Check::Discard, State::Degraded),
        false => (Check::Stream, State::Stuck),
    };
    let needed = "room for unread messages, and discard policy new: a full stream rejects, and messages wait in the outbox";
    let next = Next {
        advice: Some("if the disk has room; or set a shorter `max_age`".to_owned()),
        ..full.next
    };
    Some(Diagnosis::new(check, state, ("", full.what), needed, next))
}

fn times(stream: &StreamFacts, wanted: &Wanted, check: &mut impl FnMut(bool, Check, String, String, Next)) {
    check(
        stream.duplicate_window < WINDOW_NEEDED,
        Check::DuplicateWindow,
        format!("duplicate window {}", span(stream.duplicate_window)),
        format!(
            "at least {}: a relay that restarts later may publish duplicates",
            span(WINDOW_NEEDED)
        ),
        stream.edit("--dupe-window=10m").into(),
    );
    let is_short = stream
        .max_age
        .is_some_and(|age| wanted.retention.is_none_or(|kept| age < kept));
    check(
        is_short,
        Check::MaxAge,
        format!("max_age {}", stream.max_age.map(span).unwrap_or_default()),
        match wanted.retention {
            Some(kept) => format!("at least {}, the `retention` of the outbox: reconcile would publish expired messages again", span(kept)),
            None => "no limit, because the outbox keeps published messages forever: reconcile would publish expired messages again".to_owned(),
        },
        match wanted.retention {
            Some(kept) => stream.edit(&format!("--max-age={}", span(kept))).into(),
            None => stream.edit("--max-age=0").into(),
        },
    );
}

fn bounds(stream: &StreamFacts, check: &mut impl FnMut(bool, Check, String, String, Next)) {
    let is_limited = stream.max_bytes.is_some() || stream.max_messages.is_some();
    check(
        is_limited && stream.drops_oldest && stream.reached().is_none(),
        Check::Discard,
        "discard policy old: a full stream drops unread messages".to_owned(),
        "discard policy new: a full stream rejects, and messages wait in the outbox".to_owned(),
        stream.edit("--discard=new").into(),
    );
    check(
        stream.max_bytes.is_none(),
        Check::MaxBytes,
        "no max_bytes".to_owned(),
        "a bound below the free disk, with discard policy new: a full disk stops the whole server".to_owned(),
        stream
            .edit(&format!("--max-bytes={MAX_BYTES} --discard=new"))
            .into(),
    );
    check(
        stream.max_messages_per_subject.is_some(),
        Check::MaxMessagesPerSubject,
        format!(
            "{} messages per subject",
            stream.max_messages_per_subject.unwrap_or_default()
        ),
        "no limit: slow consumers miss messages, or with discard_new_per_subject new messages are rejected"
            .to_owned(),
        stream.unlimit_subjects(),
    );
    check(
        stream.message_bytes < MESSAGE_BYTES,
        Check::PayloadLimit,
        format!("messages of at most {} bytes with headers", stream.message_bytes),
        format!("{MESSAGE_BYTES}, or a lower limit of the outbox: larger messages become dead letters"),
        Next::and_advice(
            stream.edit("--max-msg-size=-1"),
            "and raise max_payload of the server, if that is the smaller limit",
        ),
    );
}

fn keeping(stream: &StreamFacts, check: &mut impl FnMut(bool, Check, String, String, Next)) {
    check(
        !stream.keeps_what_was_read,
        Check::StreamRetention,
        "a retention policy that deletes acknowledged messages".to_owned(),
        "policy limits: reconcile and new consumers need acknowledged messages".to_owned(),
        Next::advice(
            "create a stream with policy limits and move the consumers; the policy cannot be changed",
        ),
    );
    check(
        stream.is_in_memory,
        Check::Replicas,
        "the stream is in memory".to_owned(),
        "file storage: a restart loses confirmed messages".to_owned(),
        Next::advice(
            "create a stream with file storage and move the consumers; the storage cannot be changed",
        ),
    );
    check(
        stream.is_clustered && stream.replicas < 3,
        Check::Replicas,
        format!("{} replicas in a cluster", stream.replicas),
        "3: confirmed messages survive the loss of a node".to_owned(),
        stream.edit("--replicas=3").into(),
    );
    check(
        !stream.is_supported,
        Check::NatsVersion,
        format!("nats-server {}", stream.version),
        "2.9 or newer".to_owned(),
        Next::advice("upgrade the server"),
    );
}

/// Consumer findings. `memory`: how long the inbox keeps rows, if known.
pub fn of_consumer(row: &ConsumerRow, memory: Option<Duration>, stream: &StreamFacts) -> Vec<Diagnosis> {
    let name = row.consumer.as_str();
    let finding = |check, needed: &str, reason: Reason| {
        Diagnosis::new(check, reason.state, (name, reason.what), needed, reason.next)
    };
    let behind = row.oldest.and_then(|oldest| behind(name, oldest, stream));
    let running = match &row.paused {
        Some(_) => Some((Check::ConsumerPaused, "no forgotten pause")),
        None if behind.is_some() => None,
        None => Some((
            Check::ConsumerBehind,
            "a process that runs this consumer, with handlers that finish and keep up with the stream",
        )),
    };
    let running = running.and_then(|(check, needed)| Some(finding(check, needed, row.of_stream()?)));
    let letters = row.of_letters().map(|reason| {
        let needed = "none open: fix the cause, then retry or discard them";
        finding(Check::ConsumerDeadLetters, needed, reason)
    });
    let forgetful = memory.and_then(|memory| forgetful(name, memory, stream));
    [behind, running, letters, forgetful]
        .into_iter()
        .flatten()
        .collect()
}

/// The rule warns at half of `max_age`, to leave time for a repair.
fn behind(name: &str, oldest: Duration, stream: &StreamFacts) -> Option<Diagnosis> {
    let max_age = stream.max_age.filter(|max_age| oldest > *max_age / 2)?;
    let seen = format!(
        "its oldest message is {} old, and the stream deletes it after {}",
        span(oldest),
        span(max_age)
    );
    let needed = format!(
        "less than {}: messages deleted unread are lost to this consumer",
        span(max_age / 2)
    );
    let advice = format!(
        "until it has caught up, raise `max_age` of stream {}",
        stream.name
    );
    Some(Diagnosis::new(
        Check::ConsumerBehind,
        State::Stuck,
        (name, seen),
        needed,
        Next::and_advice("outbox consumers list", advice),
    ))
}

fn forgetful(name: &str, memory: Duration, stream: &StreamFacts) -> Option<Diagnosis> {
    let (kept, next) = match stream.max_age {
        Some(max_age) if memory >= max_age + MEMORY_MARGIN => return None,
        Some(max_age) => (
            format!("for {}", span(max_age)),
            Next::advice(format!(
                "raise the `retention` of its inbox to at least {}",
                span(max_age + MEMORY_MARGIN)
            )),
        ),
        None => {
            let shorter = span(memory.saturating_sub(MEMORY_MARGIN));
            (
                "forever".to_owned(),
                stream.edit(&format!("--max-age={shorter}")).into(),
            )
        }
    };
    Some(Diagnosis::new(
        Check::InboxMemory,
        State::Degraded,
        (
            name,
            format!(
                "its inbox keeps rows for {}, and the stream keeps messages {kept}",
                span(memory)
            ),
        ),
        "an hour longer than the stream: otherwise a replay takes effect twice",
        next,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::consumers;

    const DAY: Duration = Duration::from_hours(24);

    fn sound() -> StreamFacts {
        StreamFacts {
            name: "EVENTS".to_owned(),
            keeps_what_was_read: true,
            duplicate_window: WINDOW_NEEDED,
            max_age: Some(14 * DAY),
            max_bytes: Some(1 << 30),
            messages: 1_000,
            bytes: 1 << 20,
            replicas: 3,
            is_clustered: true,
            message_bytes: MESSAGE_BYTES,
            version: "2.10.0".to_owned(),
            is_supported: true,
            ..StreamFacts::default()
        }
    }

    fn checks(stream: &StreamFacts, retention: Option<Duration>) -> Vec<Check> {
        let found = of_stream(stream, &Wanted { retention });
        found.iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn single_replica_and_old_server_are_findings() {
        assert_eq!(checks(&sound(), Some(7 * DAY)), []);
        let one = StreamFacts {
            replicas: 1,
            ..sound()
        };
        assert_eq!(checks(&one, Some(7 * DAY)), [Check::Replicas]);
        let alone = StreamFacts {
            is_clustered: false,
            ..one
        };
        assert_eq!(checks(&alone, Some(7 * DAY)), []);
        let old = StreamFacts {
            is_supported: false,
            ..sound()
        };
        assert_eq!(checks(&old, Some(7 * DAY)), [Check::NatsVersion]);
    }

    #[test]
    fn a_stream_keeps_messages_as_long_as_the_outbox() {
        assert_eq!(checks(&sound(), Some(14 * DAY)), []);
        assert_eq!(checks(&sound(), Some(15 * DAY)), [Check::MaxAge]);
        assert_eq!(checks(&sound(), None), [Check::MaxAge]);
        let for_ever = StreamFacts {
            max_age: None,
            ..sound()
        };
        assert_eq!(checks(&for_ever, None), []);
    }

    #[test]
    fn consumer_near_stream_expiry_is_a_finding() {
        let found = |oldest| {
            let mut row = consumers::dead("billing", 0);
            (row.undelivered, row.oldest) = (Some(1), Some(oldest));
            let found = of_consumer(&row, None, &sound()).into_iter();
            found
                .map(|finding| (finding.check, finding.state))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(Duration::from_secs(1)), []);
        assert_eq!(found(7 * DAY), [(Check::ConsumerBehind, State::Degraded)]);
        assert_eq!(found(8 * DAY), [(Check::ConsumerBehind, State::Stuck)]);
    }

    #[test]
    fn open_dead_letters_of_a_consumer_are_a_finding() {
        let mut row = consumers::dead("billing", 10_000);
        let found = |row: &ConsumerRow| {
            let found = of_consumer(row, None, &sound()).into_iter();
            found.map(|finding| finding.check).collect::<Vec<_>>()
        };
        assert_eq!(found(&row), [Check::ConsumerDeadLetters]);
        row.paused = Some("stocktaking".to_owned());
        assert_eq!(found(&row), [Check::ConsumerPaused, Check::ConsumerDeadLetters]);
        row.undelivered = None;
        let absent = of_consumer(&row, None, &sound());
        assert_eq!(absent[0].next.line(), "outbox consumers resume billing");
        assert_eq!(found(&consumers::dead("billing", 0)), []);
    }

    #[test]
    fn an_inbox_remembers_an_hour_more_than_the_stream() {
        let row = consumers::dead("billing", 0);
        let found = |memory, stream: &StreamFacts| of_consumer(&row, Some(memory), stream);
        let margin = 14 * DAY + MEMORY_MARGIN;
        assert_eq!(found(margin, &sound()), []);
        assert_eq!(found(14 * DAY, &sound())[0].check, Check::InboxMemory);
        let for_ever = StreamFacts {
            max_age: None,
            ..sound()
        };
        assert_eq!(found(margin, &for_ever).len(), 1);
    }
}
