//! Why something does not arrive: the true reason, out of a closed list.
//!
//! Facts are read first (`facts`), then judged by a pure function (`explain`). Invariant: each cause is named only if a fact proves it; what is not known is
//! said to be unknown. Not here: what consumers do with a message that is on the stream.

mod explain;
mod facts;

use outbox_core::{Aggregate, Message, MessageId, OutboxReader, StoreError};
use serde::Serialize;

use crate::serial;
use crate::status::State;
use facts::Facts;

pub(crate) use facts::unpublished;

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
    /// It was published, and is no longer on the stream.
    LeftStream,
    /// It was published, and nobody could say whether it is still on the stream.
    StreamUnknown,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 16] = [
        Self::NotRecorded,
        Self::DeadLetter,
        Self::BehindDeadLetter,
        Self::Delayed,
        Self::BehindDelayed,
        Self::BackingOff,
        Self::BehindFailed,
        Self::Paused,
        Self::NoRelay,
        Self::NoOwner,
        Self::RelayAiling,
        Self::RelayBehind,
        Self::Unreadable,
        Self::OnStream,
        Self::LeftStream,
        Self::StreamUnknown,
    ];

    /// The cause as JSON has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotRecorded => "not-recorded",
            Self::DeadLetter => "dead-letter",
            Self::BehindDeadLetter => "behind-dead-letter",
            Self::Delayed => "delayed",
            Self::BehindDelayed => "behind-delayed",
            Self::BackingOff => "backing-off",
            Self::BehindFailed => "behind-failed",
            Self::Paused => "paused",
            Self::NoRelay => "no-relay",
            Self::NoOwner => "no-owner",
            Self::RelayAiling => "relay-ailing",
            Self::RelayBehind => "relay-behind",
            Self::Unreadable => "unreadable",
            Self::OnStream => "on-stream",
            Self::LeftStream => "left-stream",
            Self::StreamUnknown => "stream-unknown",
        }
    }
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
    pub next: Vec<String>,
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
}

impl Explanation {
    fn new(subject: String, findings: Vec<Finding>, unpublished: u64) -> Self {
        let worst = findings.iter().map(|finding| finding.state).max();
        Self {
            subject,
            state: worst.unwrap_or(State::Well),
            findings,
            unpublished,
        }
    }
}

/// Says why a message does not arrive. `locate` finds a published message on the stream, and is only called for one that was published:
/// [`StreamSearch::locate`](outbox_core::StreamSearch::locate), or something that connects first. Its error is for people.
///
/// # Errors
///
/// [`StoreError`]. A broker that does not answer is no error but a finding.
pub async fn why_message(
    store: &impl OutboxReader,
    locate: impl AsyncFn(&Message) -> Result<Option<u64>, String>,
    id: MessageId,
) -> Result<Explanation, StoreError> {
    let mut open = open_message(store, id).await?;
    if let Some(message) = open.published() {
        let found = locate(message).await;
        open.locate(found);
    }
    Ok(open.explain())
}

/// Says why the events of an aggregate do not arrive: the first of its messages that is not published, or else where the last one is.
///
/// # Errors
///
/// [`StoreError`]. A broker that does not answer is no error but a finding.
pub async fn why_aggregate(
    store: &impl OutboxReader,
    locate: impl AsyncFn(&Message) -> Result<Option<u64>, String>,
    aggregate: &Aggregate,
) -> Result<Explanation, StoreError> {
    let mut open = open_aggregate(store, aggregate).await?;
    if let Some(message) = open.published() {
        let found = locate(message).await;
        open.locate(found);
    }
    Ok(open.explain())
}

/// What the outbox says. The stream is to be asked yet, if a message was published.
pub(crate) struct OpenQuestion {
    subject: String,
    facts: Facts,
}

impl OpenQuestion {
    /// The message that the stream has to be asked about, if it is one.
    pub(crate) fn published(&self) -> Option<&Message> {
        self.facts.published()
    }

    /// Takes the answer of the stream.
    pub(crate) fn locate(&mut self, found: Result<Option<u64>, String>) {
        self.facts.locate(found);
    }

    pub(crate) fn explain(self) -> Explanation {
        let findings = explain::explain(&self.facts);
        Explanation::new(self.subject, findings, self.facts.unpublished)
    }
}

/// Reads what the outbox says about a message.
pub(crate) async fn open_message(
    store: &impl OutboxReader,
    id: MessageId,
) -> Result<OpenQuestion, StoreError> {
    Ok(OpenQuestion {
        subject: format!("message {id}"),
        facts: Facts::of_message(store, id).await?,
    })
}

/// Reads what the outbox says about an aggregate.
pub(crate) async fn open_aggregate(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
) -> Result<OpenQuestion, StoreError> {
    Ok(OpenQuestion {
        subject: format!("aggregate {aggregate}"),
        facts: Facts::of_aggregate(store, aggregate).await?,
    })
}
