//! The events of a simulated world, in order.
//!
//! Invariant: an entry names messages, relays and aggregates by small numbers, never by their random ids. So the same
//! seed gives the same history and the same digest. [`checker`](super::checker) judges the events.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use outbox_core::publisher::FailureClass;
use tokio::time::Instant;

/// The number of a message in the order of commits. Replayed copies have numbers of their own.
pub(super) type MessageNo = u32;
/// The number of a run of a relay, in the order of starts.
pub(super) type Life = u32;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Committed {
        no: MessageNo,
        aggregate: u32,
        sequence: Option<u64>,
        delayed: bool,
        poison: bool,
    },
    RolledBack {
        messages: u32,
    },
    Started {
        life: Life,
        relay: u32,
    },
    Ended {
        life: Life,
        how: &'static str,
    },
    Paused {
        life: Life,
        for_ms: u64,
    },
    Resumed {
        life: Life,
    },
    Granted {
        life: Life,
        partitions: u32,
    },
    Renewed {
        life: Life,
        partitions: u32,
        lost: u32,
    },
    Released {
        life: Life,
        partitions: u32,
    },
    Left {
        life: Life,
    },
    Fetched {
        life: Life,
        blocked: bool,
        due: Vec<MessageNo>,
        waits: Vec<MessageNo>,
    },
    Sent {
        life: Life,
        no: MessageNo,
    },
    GaveUpWaiting {
        life: Life,
        no: MessageNo,
    },
    Stored {
        no: MessageNo,
        duplicate: bool,
    },
    Confirmed {
        life: Life,
        no: MessageNo,
    },
    Failed {
        life: Life,
        no: MessageNo,
        class: FailureClass,
    },
    Settled {
        life: Life,
        no: MessageNo,
        verdict: &'static str,
        accepted: bool,
    },
    StoreFailed {
        life: Life,
        call: &'static str,
    },
    /// The call will never be answered.
    Unanswered {
        life: Life,
        call: &'static str,
    },
    AnswerLost {
        life: Life,
        call: &'static str,
    },
    Fault {
        what: &'static str,
    },
    /// A clock jumps by so many milliseconds.
    Clock {
        whose: &'static str,
        by_ms: i64,
    },
    /// The writer does not learn whether the commit succeeded.
    CommitUnknown {
        how: &'static str,
    },
    /// A relay is cut off from some of its calls.
    CutOff {
        relay: u32,
    },
    /// Publishing of everything, or of an aggregate type, is paused.
    Pausing {
        what: &'static str,
        lasts_ms: Option<u64>,
    },
    Unpausing {
        what: &'static str,
    },
    /// The stream no longer holds the message.
    Lost {
        no: MessageNo,
    },
    Purged {
        no: MessageNo,
    },
    OpenedLog {
        life: Life,
    },
    /// The table has adopted a message of the log.
    Adopted {
        life: Life,
        no: MessageNo,
    },
    /// The stored position of the log has passed a message.
    Passed {
        no: MessageNo,
    },
    Operator {
        what: &'static str,
        no: MessageNo,
    },
    Phase {
        name: &'static str,
    },
}

#[derive(Debug)]
pub(super) struct History {
    started: Instant,
    events: Vec<(Duration, Event)>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            events: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, event: Event) {
        self.events.push((self.started.elapsed(), event));
    }

    /// A digest that is equal for equal histories.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.events.hash(&mut hasher);
        hasher.finish()
    }

    /// The last lines, as text.
    pub(super) fn tail(&self, lines: usize) -> Vec<String> {
        let from = self.events.len().saturating_sub(lines);
        let line = |(at, event): &(Duration, Event)| format!("{:>9.3} {event:?}", at.as_secs_f64());
        self.events[from..].iter().map(line).collect()
    }
}
