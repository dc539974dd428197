//! Why something does not arrive: the true reason, out of a closed list.
//!
//! Facts are read first (`facts`), then judged by a pure function (`explain`). Invariant: each cause is named only if a fact proves it; what is not known is
//! said to be unknown. Consumers are judged by their rows and positions (`readers`), those that go by numbers by these (`numbers`), a failure by what the broker says
//! (`refused`).

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

/// Why a message does not arrive, or that it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Cause {
    /// The outbox does not hold it: it was not recorded, or its row was deleted after it was published.
    NotRecorded,
    /// It is a dead letter.
    DeadLetter,
    /// Its aggregate is halted by another message, which is a dead letter.
    BehindDeadLetter,
    /// It has a time of its own, which has not come.
    Delayed,
    /// An earlier message of its aggregate is delayed.
    BehindDelayed,
    /// It has failed, and will be tried again at a time.
    BackingOff,
    /// An earlier message of its aggregate has failed, and will be tried again at a time.
    BehindFailed,
    /// It or an earlier message of its aggregate has failed, and there is no stream.
    NoStream,
    /// It or an earlier message of its aggregate has failed, and the stream does not take its subject.
    NotCaptured,
    /// It or an earlier message of its aggregate has failed, and the stream is full.
    Full,
    /// It or an earlier message of its aggregate has failed, and the stream would refuse it again, for another reason.
    Refused,
    /// Publishing of its aggregate type, or of everything, is paused.
    Paused,
    /// No relay is alive.
    NoRelay,
    /// Relays are alive, and none owns its partition.
    NoOwner,
    /// The relay that owns its partition says that it does not reach the broker, or cannot fetch or settle.
    RelayAiling,
    /// A relay that can publish owns its partition and has not come to it.
    RelayBehind,
    /// The row cannot be read, so it will become a dead letter.
    Unreadable,
    /// It is on the stream.
    OnStream,
    /// It is a dead letter of a consumer.
    ConsumerDeadLetter,
    /// A consumer has failed to handle it, and will try again.
    ConsumerFailed,
    /// A consumer has not come to it, and is paused.
    ConsumerPaused,
    /// A consumer has as many messages unacknowledged as it may have, and has not come to it.
    ConsumerFull,
    /// A consumer has not come to it, and no process of it asks for messages.
    ConsumerIdle,
    /// A consumer takes messages and has not come to it.
    ConsumerBehind,
    /// A consumer that goes by numbers was handed it, and has not handled an earlier event of its aggregate, which comes first unless gaps are normal to its handler.
    ConsumerGap,
    /// Numbers of the aggregate have no rows, although the outbox keeps rows of their time: the rows were deleted.
    NumberMissing,
    /// It was published, and is no longer on the stream.
    LeftStream,
    /// It was published, and nobody could say whether it is still on the stream.
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

/// A cause, the message it is about, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// How bad it is.
    pub state: State,
    /// The message that the cause lies in, if it is one.
    #[serde(serialize_with = "serial::text_if_any")]
    pub message: Option<MessageId>,
    /// The stream sequence, if the message is on the stream.
    pub stream_sequence: Option<u64>,
    /// What is so, in a sentence.
    pub what: String,
    /// The next commands.
    pub next: Vec<Command>,
    /// What no command does, in words.
    pub advice: Option<String>,
}

/// Why something does not arrive. The first finding is the one to mend first; the others come into effect after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// What was asked for: `message …` or `aggregate …`.
    pub subject: String,
    /// The worst state of all findings.
    pub state: State,
    /// At least one.
    pub findings: Vec<Finding>,
    /// Messages of the aggregate that are not published, dead letters that halt it included; counting stops at 1,000.
    pub unpublished: u64,
    /// What could not be looked at.
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
    /// The message with this id.
    Message(MessageId),
    /// An aggregate.
    Aggregate(Aggregate),
}

/// What the outbox says about a message or an aggregate, before its stream and the consumers are asked.
#[derive(Debug)]
pub struct Question {
    subject: String,
    facts: Facts,
}

impl Question {
    /// Reads what the outbox says: about a message; of an aggregate, about the first of its messages that is not published, or else the last one.
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

    /// Asks for what is still open, and says why it does not arrive. Each answer is waited for within `patience`; one that is missing is named in the explanation.
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
