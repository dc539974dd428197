//! Derives findings from facts, by a pure function.

use std::time::Duration;

use outbox::core::{FoundMessage, MessageStatus, RelayHealth, StoredMessage};

use super::facts::Facts;
use super::finding::{NOTHING, finding, named, times};
use super::readers;
use super::refused::refused;
use super::{Cause, Finding, MessageOrAggregate};
use crate::admin::holes::Hole;
use crate::admin::next::{Command, Next};
use crate::admin::pause::PauseRow;
use crate::admin::relay_causes;
use crate::admin::serial::rfc3339;
use crate::admin::verdict::State;
use crate::admin::words::{counted, in_words};

pub(super) fn explain(facts: &Facts) -> Vec<Finding> {
    let mut findings = number_missing(facts);
    findings.extend(of_message(facts));
    findings
}

fn number_missing(facts: &Facts) -> Vec<Finding> {
    let MessageOrAggregate::Aggregate(aggregate) = &facts.subject else {
        return Vec::new();
    };
    let Some(first) = facts.holes.first() else {
        return Vec::new();
    };
    let numbers: Vec<String> = facts.holes.iter().take(NAMED_MAX).map(Hole::numbers).collect();
    let more = facts.holes.len().saturating_sub(numbers.len());
    let more = match more {
        0 => String::new(),
        more => format!(" and {}", counted(more as u64, "further hole", "further holes")),
    };
    let what = format!(
        "{aggregate} has no row for {}{more}. Sequences have no gaps, and the outbox keeps rows of events recorded after {}, so rows were deleted. Unknown: whether \
         their events were published",
        numbers.join(", "),
        rfc3339(first.recorded_after)
    );
    let next = Command::from("outbox timeline").arg(aggregate);
    vec![finding(Cause::NumberMissing, State::Stuck, None, what, [next])]
}

const NAMED_MAX: usize = 10;

fn of_message(facts: &Facts) -> Vec<Finding> {
    let Some(message) = &facts.message else {
        return vec![not_held(facts)];
    };
    match message.stored.status {
        MessageStatus::Published => published(facts, message),
        MessageStatus::Logged => logged(facts, message),
        MessageStatus::Dead => dead(facts, message),
        MessageStatus::Pending | MessageStatus::Waiting => {
            let mut findings: Vec<Finding> = aggregate_or_time(facts, message).into_iter().collect();
            if !facts.pauses.is_empty() {
                findings = paused(facts, message, findings);
            }
            findings.extend(relay(facts, message, findings.is_empty()));
            findings
        }
    }
}

fn error_of(message: &StoredMessage) -> &str {
    message.error.as_deref().unwrap_or("no stored error")
}

fn left(wait: Duration) -> String {
    in_words(wait.max(Duration::from_secs(1)))
}

fn not_held(facts: &Facts) -> Finding {
    if let (MessageOrAggregate::Aggregate(aggregate), Some(head), true) =
        (&facts.subject, facts.head, facts.keeps_last)
    {
        let what = format!(
            "{aggregate} has recorded {}, the last at {}, and the outbox has none of them although it keeps rows of that time: rows were deleted. Unknown: whether \
             their events were published",
            counted(head.last_sequence, "message", "messages"),
            rfc3339(head.recorded_at)
        );
        let next = Command::from("outbox list").option("--aggregate-type", &aggregate.aggregate_type);
        return finding(Cause::NumberMissing, State::Stuck, None, what, [next]);
    }
    let (what, next) = match (&facts.subject, facts.head) {
        (MessageOrAggregate::Message(id), _) => (
            format!(
                "the outbox has no message {id}: its transaction was rolled back or is still open, it belongs to another outbox, or its row was deleted"
            ),
            "outbox list --since 1h".into(),
        ),
        (MessageOrAggregate::Aggregate(aggregate), Some(head)) => (
            format!(
                "{aggregate} has recorded {}, and the outbox has none of them: their rows were deleted. Unknown: whether their events were published",
                counted(head.last_sequence, "message", "messages")
            ),
            Command::from("outbox list").option("--aggregate-type", &aggregate.aggregate_type),
        ),
        (MessageOrAggregate::Aggregate(aggregate), None) => (
            format!(
                "{aggregate} has recorded nothing: check type and id, or its transaction was rolled back or is still open, or the aggregate was forgotten"
            ),
            Command::from("outbox list").option("--aggregate-type", &aggregate.aggregate_type),
        ),
    };
    finding(Cause::NotRecorded, State::Degraded, None, what, [next])
}

fn on_stream(facts: &Facts, stored: &StoredMessage, stream_sequence: u64) -> Vec<Finding> {
    let (mut findings, consumers) = match &facts.readers {
        None => (
            Vec::new(),
            "if the effect is missing, check the consumer".to_owned(),
        ),
        Some(Err(error)) => (Vec::new(), format!("its consumers were not checked: {error}")),
        Some(Ok(readers)) => readers::judge(stored, stream_sequence, readers),
    };
    let consumers = match consumers.is_empty() {
        true => consumers,
        false => format!("; {consumers}"),
    };
    let what = format!(
        "{} is on the stream, with stream sequence {stream_sequence}{consumers}",
        named(stored)
    );
    findings.push(Finding {
        stream_sequence: Some(stream_sequence),
        ..finding(
            Cause::OnStream,
            State::Healthy,
            Some(stored),
            what,
            ["outbox consumers list"],
        )
    });
    findings
}

fn published(facts: &Facts, message: &FoundMessage) -> Vec<Finding> {
    let stored = &message.stored;
    match &facts.place {
        Some(Ok(Some(stream_sequence))) => on_stream(facts, stored, *stream_sequence),
        elsewhere => vec![not_on_stream(elsewhere.as_ref(), stored)],
    }
}

fn not_on_stream(place: Option<&Result<Option<u64>, String>>, stored: &StoredMessage) -> Finding {
    let name = named(stored);
    match place {
        Some(Ok(_)) => finding(
            Cause::LeftStream,
            State::Degraded,
            Some(stored),
            format!(
                "{name} was published and is not on the stream where these settings would put it: its maximum age is over, the stream was full with discard policy \
                 old and has dropped its oldest messages, it was purged, the stream has lost data, or it was published in another mode (`strong`, `subject_shards`), on another subject"
            ),
            [Command::from("outbox replay").arg(stored.id)],
        )
        .advise("if the stream has lost more messages, `outbox reconcile` publishes them with their old ids"),
        Some(Err(why)) => finding(
            Cause::StreamUnknown,
            State::Degraded,
            Some(stored),
            format!("{name} was published; whether it is still on the stream is unknown: {why}"),
            ["outbox doctor"],
        ),
        None => finding(
            Cause::StreamUnknown,
            State::Degraded,
            Some(stored),
            format!(
                "{name} was published, but its row cannot be read, so the stream was not searched"
            ),
            [Command::from("outbox show").arg(stored.id)],
        ),
    }
}

fn logged(facts: &Facts, message: &FoundMessage) -> Vec<Finding> {
    if facts.on_stream().is_some() {
        return published(facts, message);
    }
    let stored = &message.stored;
    let what = format!(
        "{} was recorded for a log relay and is not on the stream: the log relay has not reached it, or it was published and has left the stream; check the \
         health of the log relay, and its replication slot in pg_replication_slots",
        named(stored)
    );
    vec![finding(
        Cause::RelayBehind,
        State::Degraded,
        Some(stored),
        what,
        ["outbox status"],
    )]
}

fn dead(facts: &Facts, message: &FoundMessage) -> Vec<Finding> {
    let stored = &message.stored;
    let (state, consequence) = if stored.halts {
        let behind = counted(
            facts.unpublished.saturating_sub(1),
            "message waits",
            "messages wait",
        );
        (
            State::Stuck,
            format!("it halts its aggregate; {behind} behind it"),
        )
    } else {
        (State::Degraded, "its aggregate continues without it".to_owned())
    };
    let what = format!(
        "{} is a dead letter after {}: {}. {consequence}",
        named(stored),
        counted(stored.attempts.into(), "attempt", "attempts"),
        error_of(stored),
    );
    let retry = Command::from("outbox retry").arg(stored.id);
    let skip = Command::from("outbox retry --skip").arg(stored.id);
    let skip = Some(skip).filter(|_| stored.halts);
    let next = [retry].into_iter().chain(skip);
    vec![finding(Cause::DeadLetter, state, Some(stored), what, next)]
}

/// If publishing is paused, findings about halting, delays and rejections are kept, because they
/// still apply after the pause.
fn paused(facts: &Facts, message: &FoundMessage, others: Vec<Finding>) -> Vec<Finding> {
    let of_pause = |pause: &PauseRow| {
        finding(
            Cause::Paused,
            State::Degraded,
            Some(&message.stored),
            format!("{} waits: {}", named(&message.stored), pause.sentence()),
            [pause.unpause()],
        )
    };
    let mut findings: Vec<Finding> = facts.pauses.iter().map(of_pause).collect();
    let lasts = |other: &Finding| {
        matches!(
            other.cause,
            Cause::BehindDeadLetter
                | Cause::Delayed
                | Cause::BehindDelayed
                | Cause::NoStream
                | Cause::NotCaptured
                | Cause::Full
                | Cause::Refused
        )
    };
    // A pause moves the due time of unsequenced messages beyond [`HELD_FOR`].
    let is_held = message.delayed_for.is_some_and(|left| left > HELD_FOR);
    findings.extend(others.into_iter().filter(|other| lasts(other) && !is_held));
    findings
}

/// A due time further in the future than this comes from a pause.
const HELD_FOR: Duration = Duration::from_secs(1_000 * 365 * 24 * 3600);

fn aggregate_or_time(facts: &Facts, message: &FoundMessage) -> Option<Finding> {
    let stored = &message.stored;
    let is_sequenced = stored.sequence.is_some();
    if let Some(letter) = facts.halting.as_ref().filter(|_| is_sequenced) {
        return Some(behind_dead_letter(stored, letter));
    }
    if let Some(refused) = refused(facts, message) {
        return Some(refused);
    }
    let blocked_for = facts.block.as_ref().and_then(|block| block.blocked_for);
    let blocked_for = blocked_for.filter(|left| !left.is_zero() && is_sequenced);
    match &facts.before {
        Some(first) => behind(stored, first, blocked_for),
        None => own_time(message, blocked_for),
    }
}

fn behind_dead_letter(stored: &StoredMessage, letter: &StoredMessage) -> Finding {
    let what = format!(
        "{} waits: its aggregate is halted by {}, a dead letter: {}",
        named(stored),
        named(letter),
        error_of(letter)
    );
    let (retry, skip) = (
        Command::from("outbox retry").arg(letter.id),
        Command::from("outbox retry --skip").arg(letter.id),
    );
    finding(
        Cause::BehindDeadLetter,
        State::Stuck,
        Some(letter),
        what,
        [retry, skip],
    )
}

fn behind(stored: &StoredMessage, first: &FoundMessage, blocked_for: Option<Duration>) -> Option<Finding> {
    let other = &first.stored;
    let (cause, what, next) = if let Some(wait) = first.delayed_for {
        let what = format!(
            "{} waits behind {} of its aggregate, which is delayed for {} more",
            named(stored),
            named(other),
            left(wait)
        );
        (
            Cause::BehindDelayed,
            what,
            Command::from("outbox show").arg(other.id),
        )
    } else {
        let what = format!(
            "{} waits behind {} of its aggregate, which has failed {} and is retried in {}: {}",
            named(stored),
            named(other),
            times(other),
            left(blocked_for?),
            error_of(other)
        );
        (
            Cause::BehindFailed,
            what,
            Command::from("outbox resume").arg(&stored.aggregate),
        )
    };
    Some(finding(cause, State::Degraded, Some(other), what, [next]))
}

fn own_time(message: &FoundMessage, blocked_for: Option<Duration>) -> Option<Finding> {
    let stored = &message.stored;
    let show = Command::from("outbox show").arg(stored.id);
    // Both a delay and a back-off set the due time of an unsequenced message.
    let backs_off_alone = stored.failures > 0 && stored.sequence.is_none();
    if let Some(wait) = message.delayed_for.filter(|_| !backs_off_alone) {
        let what = format!("{} is delayed: due in {}", named(stored), left(wait));
        return Some(finding(
            Cause::Delayed,
            State::Healthy,
            Some(stored),
            what,
            [show],
        ));
    }
    let wait = blocked_for.or(message.delayed_for)?;
    let what = format!(
        "{} has failed {} and is retried in {}: {}",
        named(stored),
        times(stored),
        left(wait),
        error_of(stored)
    );
    let next = match stored.sequence {
        Some(_) => Command::from("outbox resume").arg(&stored.aggregate),
        None => show,
    };
    Some(finding(
        Cause::BackingOff,
        State::Degraded,
        Some(stored),
        what,
        [next],
    ))
}

/// `is_due`: no block or delay holds the message back, so the relay must be the cause.
fn relay(facts: &Facts, message: &FoundMessage, is_due: bool) -> Option<Finding> {
    let stored = &message.stored;
    if facts.relays.is_empty() {
        let cause = relay_causes::none_alive(&facts.expired);
        let what = format!("{cause}; {} is {}", named(stored), stored.status.as_str());
        let Next { command, advice } = Next::start_relay();
        return Some(Finding {
            next: command.into_iter().collect(),
            advice,
            ..finding(Cause::NoRelay, State::Stuck, None, what, NOTHING)
        });
    }
    if let Some(failing) = relay_causes::failing(&facts.relays).filter(|failing| failing.is_stuck) {
        return Some(unhealthy(failing.what));
    }
    let partition = stored.aggregate.partition();
    let Some(owner) = facts.owner else {
        let what = format!(
            "no relay owns partition {partition} of {}; normal for seconds after a start or a crash",
            named(stored)
        );
        return Some(finding(
            Cause::NoOwner,
            State::Degraded,
            None,
            what,
            ["outbox relay list"],
        ));
    };
    if let Some(relay) = facts
        .owning_relay()
        .filter(|relay| relay.health == RelayHealth::Unhealthy)
    {
        let fails = relay_causes::of_relay(relay)
            .unwrap_or_else(|| "it cannot publish, fetch or settle; its log has the error".to_owned());
        return Some(unhealthy(format!(
            "relay {owner} of partition {partition} is unhealthy: {fails}"
        )));
    }
    is_due.then(|| due(facts, message, &format!("relay {owner} of partition {partition}")))
}

fn unhealthy(what: String) -> Finding {
    finding(
        Cause::RelayUnhealthy,
        State::Stuck,
        None,
        what,
        ["outbox relay list"],
    )
}

fn due(facts: &Facts, message: &FoundMessage, relay: &str) -> Finding {
    let stored = &message.stored;
    let name = named(stored);
    if let Err(damage) = &message.message {
        let what =
            format!("the row of {name} cannot be read, so a relay will make it a dead letter: {damage}");
        let next = Command::from("outbox show").arg(stored.id);
        return finding(Cause::Unreadable, State::Degraded, Some(stored), what, [next]);
    }
    let due = match &facts.before {
        Some(first) => format!(
            "comes after {} of its aggregate, which is due",
            named(&first.stored)
        ),
        None => "due".to_owned(),
    };
    let what = format!(
        "{name} is {} and {due}; {relay} has not reached it yet",
        stored.status.as_str()
    );
    let next = ["outbox status", "outbox relay list"];
    finding(Cause::RelayBehind, State::Degraded, Some(stored), what, next)
}
