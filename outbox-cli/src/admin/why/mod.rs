//! Explains missing deliveries.
//!
//! Invariant: a cause is named only if a fact proves it.

mod earlier;
mod explain;
mod facts;
mod finding;
mod numbers;
mod readers;
mod refused;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use outbox::core::{Aggregate, MessageId, OutboxReader, StoreError, describe};
use serde::Serialize;

use crate::admin::next::Command;
use crate::admin::serial;
use crate::admin::stream_view::{StreamView, answered};
use crate::admin::verdict::State;
use facts::Facts;

pub use earlier::earlier_events;
pub use numbers::Numbers;
pub use readers::{Reader, Readers};

/// Why a message is not delivered. An earlier message of the aggregate may be the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Message never recorded, or deleted.
    NotRecorded,
    /// Dead letter of the outbox.
    DeadLetter,
    /// Message behind a dead letter, which halts the aggregate.
    BehindDeadLetter,
    /// Delayed message.
    Delayed,
    /// Message behind a delayed message.
    BehindDelayed,
    /// Failed message that backs off.
    BackingOff,
    /// Message behind a failed message.
    BehindFailed,
    /// Failed message: no stream.
    NoStream,
    /// Failed message: uncaptured subject.
    NotCaptured,
    /// Full stream.
    Full,
    /// Failed message that the stream would reject again.
    Refused,
    /// Publishing is paused.
    Paused,
    /// No live relay.
    NoRelay,
    /// Partition without owner.
    NoOwner,
    /// The partition's relay cannot reach the broker, fetch or settle.
    RelayUnhealthy,
    /// A working relay owns the partition, but has not reached the message.
    RelayBehind,
    /// Damaged row, about to become a dead letter.
    Unreadable,
    /// Message on the stream.
    OnStream,
    /// Dead letter of a consumer.
    ConsumerDeadLetter,
    /// Message that failed at a consumer.
    ConsumerFailed,
    /// Message not reached by a paused consumer.
    ConsumerPaused,
    /// Message not reached by a consumer at its limit of unacknowledged messages.
    ConsumerFull,
    /// Message not reached by a consumer without a pull request.
    ConsumerIdle,
    /// Message not reached by a receiving consumer.
    ConsumerBehind,
    /// Message delivered before an unhandled earlier sequence, at a consumer with strategy
    /// `sequence`.
    ConsumerGap,
    /// Sequences without rows, although the outbox keeps rows recorded at that time.
    NumberMissing,
    /// Published message that is no longer on the stream.
    LeftStream,
    /// Published message, presence on the stream unknown.
    StreamUnknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Cause and repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Cause.
    pub cause: Cause,
    /// Severity.
    pub state: State,
    /// The causing message.
    #[serde(serialize_with = "serial::text_if_any")]
    pub message: Option<MessageId>,
    /// Stream sequence, if on the stream.
    pub stream_sequence: Option<u64>,
    /// Description, one sentence.
    pub what: String,
    /// Next commands.
    pub next: Vec<Command>,
    /// Advice beyond commands.
    pub advice: Option<String>,
}

/// Findings, in order of repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Subject: `message …` or `aggregate …`.
    pub subject: String,
    /// Worst state of all findings.
    pub state: State,
    /// The findings, never empty.
    pub findings: Vec<Finding>,
    /// Unpublished messages of the aggregate, at most 1,000.
    pub unpublished: u64,
    /// Unread parts.
    pub unseen: Vec<String>,
}

impl Explanation {
    fn new(subject: String, findings: Vec<Finding>, unpublished: u64, unseen: Vec<String>) -> Self {
        let worst = findings.iter().map(|finding| finding.state).max();
        Self {
            subject,
            state: worst.unwrap_or(State::Healthy),
            findings,
            unpublished,
            unseen,
        }
    }
}

/// Subject of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageOrAggregate {
    /// A message id.
    Message(MessageId),
    /// An aggregate.
    Aggregate(Aggregate),
}

/// Outbox facts.
#[derive(Debug)]
pub struct Question {
    subject: String,
    facts: Facts,
}

impl Question {
    /// Reads a message, or an aggregate's first unpublished message, otherwise the last.
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

    /// Reads stream and consumers, and explains the message. Waits up to `patience` per answer;
    /// missing answers are listed.
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
            self.facts.unseen.push(format!("missing sequences: {error}"));
        }
        if let Some(message) = self.facts.failing() {
            let refuses = answered(patience, stream.refuses()).await;
            let refused = refuses.map(|refuses| refuses(message));
            self.facts.refused = Some(refused);
        }
        if let Some(message) = self.facts.published() {
            self.facts.place = Some(answered(patience, stream.locate(message)).await);
        }
        if let Some((message, stream_sequence)) = self.facts.on_stream() {
            let readers = answered(patience, stream.readers(message, stream_sequence)).await;
            self.facts.readers = Some(readers);
        }
        let findings = explain::explain(&self.facts);
        Explanation::new(self.subject, findings, self.facts.unpublished, self.facts.unseen)
    }
}
