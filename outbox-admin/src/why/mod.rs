//! Explains why a message is not delivered, with causes from a closed list.
//!
//! Facts are read first (`facts`), then judged by pure functions. Invariant: a cause is named
//! only if a fact proves it; everything else is reported as unknown.

mod earlier;
mod explain;
mod facts;
mod finding;
mod numbers;
mod readers;
mod refused;

use std::fmt;
use std::time::Duration;

use outbox_core::{Aggregate, MessageId, OutboxReader, StoreError, describe};
use serde::Serialize;

use crate::next::Command;
use crate::serial;
use crate::stream_view::{StreamView, answered};
use crate::verdict::State;
use facts::Facts;

pub use earlier::earlier_events;
pub use numbers::Numbers;
pub use readers::{Reader, Readers};

/// Why a message is not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Cause {
    /// Absent from the outbox: never recorded, or deleted after publishing.
    NotRecorded,
    /// The message is a dead letter.
    DeadLetter,
    /// A dead letter halts the aggregate.
    BehindDeadLetter,
    /// The message is delayed.
    Delayed,
    /// An earlier message of the aggregate is delayed.
    BehindDelayed,
    /// The message failed and waits for its retry.
    BackingOff,
    /// An earlier message of the aggregate failed and waits for its retry.
    BehindFailed,
    /// This or an earlier message failed: the stream does not exist.
    NoStream,
    /// This or an earlier message failed: the stream does not capture its subject.
    NotCaptured,
    /// This or an earlier message failed: the stream is full.
    Full,
    /// This or an earlier message failed, and the stream would reject it again for another reason.
    Refused,
    /// Publishing of the aggregate type, or of everything, is paused.
    Paused,
    /// No relay is alive.
    NoRelay,
    /// No live relay owns the partition.
    NoOwner,
    /// The owner of the partition cannot reach the broker, fetch or settle.
    RelayAiling,
    /// A working relay owns the partition and has not reached the message.
    RelayBehind,
    /// The row cannot be decoded and will become a dead letter.
    Unreadable,
    /// The message is on the stream.
    OnStream,
    /// The event is a dead letter of a consumer.
    ConsumerDeadLetter,
    /// A consumer failed and will retry.
    ConsumerFailed,
    /// A paused consumer has not reached the message.
    ConsumerPaused,
    /// A consumer at its limit of unacknowledged messages has not reached the message.
    ConsumerFull,
    /// A consumer without an open pull request has not reached the message.
    ConsumerIdle,
    /// A receiving consumer has not reached the message.
    ConsumerBehind,
    /// A consumer with strategy `sequence` received the message but not an earlier event of its
    /// aggregate. The earlier event comes first unless the handler accepts gaps.
    ConsumerGap,
    /// Sequences of the aggregate have no rows although the outbox keeps rows of that time.
    NumberMissing,
    /// The message was published and is no longer on the stream.
    LeftStream,
    /// The message was published; whether it is still on the stream is unknown.
    StreamUnknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 28] = [
        Self::NotRecorded,
        Self::DeadLetter,
        Self::BehindDeadLetter,
        Self::Delayed,
        Self::BehindDelayed,
        Self::BackingOff,
        Self::BehindFailed,
        Self::NoStream,
        Self::NotCaptured,
        Self::Full,
        Self::Refused,
        Self::Paused,
        Self::NoRelay,
        Self::NoOwner,
        Self::RelayAiling,
        Self::RelayBehind,
        Self::Unreadable,
        Self::OnStream,
        Self::ConsumerDeadLetter,
        Self::ConsumerFailed,
        Self::ConsumerPaused,
        Self::ConsumerFull,
        Self::ConsumerIdle,
        Self::ConsumerBehind,
        Self::ConsumerGap,
        Self::NumberMissing,
        Self::LeftStream,
        Self::StreamUnknown,
    ];
}

/// A cause with its message and next steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Cause.
    pub cause: Cause,
    /// Severity.
    pub state: State,
    /// The message with the cause, if any.
    #[serde(serialize_with = "serial::text_if_any")]
    pub message: Option<MessageId>,
    /// Stream sequence, if on the stream.
    pub stream_sequence: Option<u64>,
    /// Description, one sentence.
    pub what: String,
    /// Next commands.
    pub next: Vec<Command>,
    /// Advice for steps that no command performs.
    pub advice: Option<String>,
}

/// Explanation. Repair the first finding first; the others take effect after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// `message …` or `aggregate …`.
    pub subject: String,
    /// Worst state of all findings.
    pub state: State,
    /// At least one finding.
    pub findings: Vec<Finding>,
    /// Unpublished messages of the aggregate, a halting dead letter included, at most 1,000.
    pub unpublished: u64,
    /// Parts that could not be read.
    pub unseen: Vec<String>,
}

impl Explanation {
    fn new(subject: String, findings: Vec<Finding>, unpublished: u64, unseen: Vec<String>) -> Self {
        let worst = findings.iter().map(|finding| finding.state).max();
        Self {
            subject,
            state: worst.unwrap_or(State::Well),
            findings,
            unpublished,
            unseen,
        }
    }
}

/// A message or an aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageOrAggregate {
    /// A message id.
    Message(MessageId),
    /// An aggregate.
    Aggregate(Aggregate),
}

/// Facts from the outbox, before stream and consumers are read.
#[derive(Debug)]
pub struct Question {
    subject: String,
    facts: Facts,
}

impl Question {
    /// Reads facts of a message. For an aggregate: the first unpublished message, else the last
    /// one.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn of(store: &impl OutboxReader, of: &MessageOrAggregate) -> Result<Self, StoreError> {
        Ok(match of {
            MessageOrAggregate::Message(id) => Self {
                subject: format!("message {id}"),
                facts: Facts::of_message(store, *id).await?,
            },
            MessageOrAggregate::Aggregate(aggregate) => Self {
                subject: format!("aggregate {aggregate}"),
                facts: Facts::of_aggregate(store, aggregate).await?,
            },
        })
    }

    /// Reads stream and consumers, then explains. Waits up to `patience` for each answer; missing
    /// answers are listed in the explanation.
    pub async fn explain(
        mut self,
        store: &impl OutboxReader,
        stream: &dyn StreamView,
        patience: Duration,
    ) -> Explanation {
        let holes = async {
            let looked = self.facts.look_for_holes(store, stream.rows_kept()).await;
            looked.map_err(|error| describe(&error))
        };
        if let Err(error) = answered(patience, holes).await {
            self.facts.unseen.push(format!("missing numbers: {error}"));
        }
        if let Some(message) = self.facts.failing() {
            let refuses = answered(patience, stream.refuses()).await;
            let refused = refuses.map(|refuses| refuses(message));
            self.facts.refused(refused);
        }
        if let Some(message) = self.facts.published() {
            let found = answered(patience, stream.locate(message)).await;
            self.facts.locate(found);
        }
        if let Some((message, stream_sequence)) = self.facts.on_stream() {
            let readers = answered(patience, stream.readers(message, stream_sequence)).await;
            self.facts.readers = Some(readers);
        }
        let findings = explain::explain(&self.facts);
        Explanation::new(self.subject, findings, self.facts.unpublished, self.facts.unseen)
    }
}
