//! The ledger of a span.
//!
//! Invariant: the verdict of a proof follows from its counts and from the databases that could not
//! be read.

use outbox::core::{Aggregate, EventId, StreamExtent};
use serde::Serialize;
use time::OffsetDateTime;

use crate::admin::holes::Hole;
use crate::admin::next::{Command, Next};
use crate::admin::serial;
use crate::admin::verdict::{Reason, State};
use crate::admin::words::counted;

/// The ledger of a span.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proof {
    /// Start of the span, inclusive.
    #[serde(serialize_with = "serial::time")]
    pub since: OffsetDateTime,
    /// End of the span, exclusive.
    #[serde(serialize_with = "serial::time")]
    pub until: OffsetDateTime,
    /// Verdict.
    pub verdict: Verdict,
    /// Reasons for the verdict, worst first, with commands.
    pub reasons: Vec<Reason>,
    /// Outbox counts.
    pub outbox: OutboxBooks,
    /// Stream counts.
    pub stream: StreamBooks,
    /// Counts per consumer.
    pub consumers: Vec<ConsumerBooks>,
    /// Lost messages.
    pub lost: Findings,
    /// Ghosts.
    pub ghosts: Findings,
    /// Holes.
    pub holes: Holes,
    /// Inversions.
    pub inversions: Findings,
    /// Number of rows and messages read.
    pub facts: u64,
}

/// Verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every event is on the stream in order, and handled, dead-lettered or skipped by every
    /// consumer.
    Balanced,
    /// No fault was found, but some events are unfinished or unknown.
    CannotTell,
    /// An event is lost, unrecorded, out of order or without effect.
    NotBalanced,
}

impl Verdict {
    /// The verdict in capitals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Balanced => "BALANCED",
            Self::CannotTell => "CANNOT TELL",
            Self::NotBalanced => "NOT BALANCED",
        }
    }
}

/// Outbox counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OutboxBooks {
    /// Committed events.
    pub committed: u64,
    /// Published events.
    pub published: u64,
    /// Unpublished events.
    pub unpublished: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Logged events.
    pub logged: u64,
    /// Replayed copies.
    pub replayed: u64,
}

/// Stream counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StreamBooks {
    /// Committed events on the stream.
    pub events: u64,
    /// Further stream messages of committed events: replays and duplicates.
    pub copies: u64,
    /// Expired events.
    pub expired: u64,
    /// Logged events not on the stream: unread by the log relay, or lost.
    pub logged_absent: u64,
    /// Messages older than the rows of the outbox.
    pub unrecorded: u64,
    /// Messages of other outboxes.
    pub of_others: u64,
    /// Stream entries that are no messages, since the start of the span.
    pub foreign: u64,
    /// First stream sequence when reading began.
    pub first_stream_sequence: u64,
    /// Last stream sequence when reading began.
    pub last_stream_sequence: u64,
}

/// Consumer counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerBooks {
    /// Consumer name.
    pub consumer: String,
    /// Handled events.
    pub handled: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Events that failed.
    pub failed: u64,
    /// Open events.
    pub open: u64,
    /// Passed events.
    pub passed: u64,
    /// Missing events.
    pub missing: Findings,
}

/// A count with its first findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Number of findings.
    pub count: u64,
    /// First findings, ordered by id.
    pub first: Vec<Found>,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Event id.
    #[serde(serialize_with = "serial::text")]
    pub event_id: EventId,
    /// The event's first stream sequence, if any.
    pub stream_sequence: Option<u64>,
}

/// Missing sequences of aggregates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Holes {
    /// Number of missing sequences.
    pub count: u64,
    /// First holes.
    pub first: Vec<HoleOf>,
    /// Sequences that were not checked, because there are too many rows, or rows cannot be read.
    pub unknown: u64,
}

/// Consecutive missing sequences of an aggregate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HoleOf {
    /// Aggregate type.
    pub aggregate_type: String,
    /// Aggregate id.
    pub aggregate_id: String,
    /// The missing sequences.
    #[serde(flatten)]
    pub hole: Hole,
}

impl HoleOf {
    /// For example `order/4711`.
    pub fn aggregate(&self) -> String {
        format!("{}/{}", self.aggregate_type, self.aggregate_id)
    }
}

impl Holes {
    pub(super) fn add(&mut self, aggregate: &Aggregate, hole: Hole) {
        let numbers = hole.last.saturating_sub(hole.first).saturating_add(1);
        self.count = self.count.saturating_add(numbers);
        self.first.push(HoleOf {
            aggregate_type: aggregate.aggregate_type.clone(),
            aggregate_id: aggregate.id.clone(),
            hole,
        });
    }
}

impl Findings {
    pub(super) fn add(&mut self, event: u128, stream_sequence: Option<u64>, shown: usize) {
        self.count += 1;
        if self.first.len() < shown {
            self.first.push(Found {
                event_id: EventId::from(uuid::Uuid::from_u128(event)),
                stream_sequence,
            });
        }
    }

    /// Suggests a command that prints the stream message, because the outbox may have no row.
    fn look(&self, stream: Option<&str>) -> Next {
        let advice = "compare its headers with the outbox; `outbox why` shows the state of an event";
        let first = self.first.first().and_then(|found| found.stream_sequence);
        match (stream, first) {
            (Some(stream), Some(sequence)) => {
                Next::and_advice(Command::from("nats stream get").arg(stream).arg(sequence), advice)
            }
            _ => Next::advice(advice),
        }
    }

    pub(super) fn extend(&mut self, other: Self, shown: usize) {
        self.count += other.count;
        self.first.extend(other.first);
        self.first.sort_by_key(|found| found.event_id);
        self.first.truncate(shown);
    }
}

impl Proof {
    pub(super) fn new(since: OffsetDateTime, until: OffsetDateTime, consumers: &[String]) -> Self {
        let books = |consumer: &String| ConsumerBooks {
            consumer: consumer.clone(),
            ..ConsumerBooks::default()
        };
        Self {
            since,
            until,
            verdict: Verdict::CannotTell,
            reasons: Vec::new(),
            outbox: OutboxBooks::default(),
            stream: StreamBooks::default(),
            consumers: consumers.iter().map(books).collect(),
            lost: Findings::default(),
            ghosts: Findings::default(),
            holes: Holes::default(),
            inversions: Findings::default(),
            facts: 0,
        }
    }

    pub(super) fn note_extent(&mut self, extent: StreamExtent) {
        self.stream.first_stream_sequence = extent.first_stream_sequence;
        self.stream.last_stream_sequence = extent.last_stream_sequence;
        self.stream.foreign = extent.foreign;
    }

    /// Adds a database or consumer that could not be read, and updates the verdict of the proof.
    pub fn add_unseen(&mut self, what: impl Into<String>, next: impl Into<Next>) {
        self.reasons.push(Reason::new(State::Degraded, what, next));
        self.settle();
    }

    pub(super) fn conclude(&mut self, stream: Option<&str>) {
        self.judge_findings(stream);
        for consumer in self.consumers.clone() {
            self.judge_consumer(&consumer);
        }
        self.judge_what_is_open();
        self.settle();
    }

    fn judge_findings(&mut self, stream: Option<&str>) {
        let next = Command::from("outbox reconcile")
            .option("--since", serial::rfc3339(self.since))
            .option("--until", serial::rfc3339(self.until));
        self.add(
            State::Stuck,
            self.lost.count,
            "published message is not on the stream",
            "published messages are not on the stream",
            next,
        );
        self.add(
            State::Stuck,
            self.ghosts.count,
            "message on the stream has no matching row",
            "messages on the stream have no matching rows",
            self.ghosts.look(stream),
        );
        let first = self.holes.first.first();
        self.add(
            State::Stuck,
            self.holes.count,
            "sequence of an aggregate has no row and no message on the stream: its row was deleted; unknown: whether its event was published",
            "sequences of aggregates have no rows and no messages on the stream: their rows were deleted; unknown: whether their events were published",
            match first {
                Some(hole) => Command::from("outbox timeline").arg(hole.aggregate()).into(),
                None => Next::advice("list more findings: `--limit`"),
            },
        );
        self.add(
            State::Degraded,
            self.holes.unknown,
            "sequence of an aggregate may have no row: its time has too many rows, or unreadable rows",
            "sequences of aggregates may have no rows: their time has too many rows, or unreadable rows",
            Next::advice("prove a shorter span"),
        );
        self.add(
            State::Stuck,
            self.inversions.count,
            "event is on the stream after a later event of its aggregate; expected after a late retry or a reconcile",
            "events are on the stream after later events of their aggregates; expected after a late retry or a reconcile",
            next_of(&self.inversions, "outbox show"),
        );
    }

    fn judge_consumer(&mut self, books: &ConsumerBooks) {
        let name = &books.consumer;
        self.add(
            State::Stuck,
            books.missing.count,
            &format!("event was acknowledged by {name} without effect"),
            &format!("events were acknowledged by {name} without effect"),
            next_of(&books.missing, "outbox why"),
        );
        self.add(
            State::Degraded,
            books.open,
            &format!("event is open at {name}"),
            &format!("events are open at {name}"),
            "outbox consumers list",
        );
        self.add(
            State::Degraded,
            books.failed,
            &format!("event failed at {name} and is retried"),
            &format!("events failed at {name} and are retried"),
            "outbox consumers list",
        );
    }

    fn judge_what_is_open(&mut self) {
        let (outbox, stream) = (self.outbox, self.stream);
        let open = [
            (
                outbox.unpublished,
                "event is not published yet",
                "events are not published yet",
                "outbox status",
            ),
            (
                stream.logged_absent,
                "logged event is not on the stream: the log relay has not reached it, or it is lost",
                "logged events are not on the stream: the log relay has not reached them, or they are lost",
                "outbox status",
            ),
            (
                stream.expired,
                "published message may have expired on the stream",
                "published messages may have expired on the stream",
                "outbox doctor",
            ),
            (
                stream.unrecorded,
                "message on the stream is older than the rows of the outbox",
                "messages on the stream are older than the rows of the outbox",
                "outbox doctor",
            ),
        ];
        for (count, one, many, next) in open {
            self.add(State::Degraded, count, one, many, next);
        }
        if outbox.committed == 0 {
            let what = "the outbox has no message of this span; it may be older than `retention`, or published messages are deleted at once";
            self.reasons
                .push(Reason::new(State::Degraded, what, "outbox list"));
        }
    }

    fn settle(&mut self) {
        self.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.state));
        self.verdict = match self.reasons.first().map(|reason| reason.state) {
            None => Verdict::Balanced,
            Some(State::Stuck) => Verdict::NotBalanced,
            Some(_) => Verdict::CannotTell,
        };
    }

    fn add(&mut self, state: State, count: u64, one: &str, many: &str, next: impl Into<Next>) {
        if count > 0 {
            self.reasons
                .push(Reason::new(state, counted(count, one, many), next));
        }
    }
}

fn next_of(findings: &Findings, command: &'static str) -> Next {
    match findings.first.first() {
        Some(found) => Command::from(command).arg(found.event_id).into(),
        None => Next::advice("list more findings: `--limit`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_numbers_do_not_overflow_the_count() {
        let mut holes = Holes::default();
        let hole = Hole {
            first: 0,
            last: u64::MAX,
            recorded_after: OffsetDateTime::UNIX_EPOCH,
        };
        for _ in 0..2 {
            holes.add(&Aggregate::new("order", "1"), hole);
        }
        assert_eq!(holes.count, u64::MAX);
    }
}
