//! How an outbox stands, in one answer: its backlog, its relays, its partitions and its stream, and what somebody should look at.
//!
//! The judgement is a pure function of the facts. Invariant: each reason names the command that shows more or mends it.

mod relays;

use std::time::Duration;

use outbox_core::store::BACKLOG_COUNT_MAX;
use outbox_core::{Backlog, Fitness, LiveRelay, OutboxReader, StoreError};
use serde::Serialize;

use crate::consumers::ConsumerRow;
use crate::failing::{self, Failing};
use crate::next::{Command, Next};
use crate::pause::PauseRow;
use crate::serial;
use crate::verdict::{Reason, State};
use crate::words::{at_least, counted, with_commas};

use relays::{RelayFacts, of_relays};

/// How an outbox stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The worst state of all reasons.
    pub state: State,
    /// What is wrong, the worst first.
    pub reasons: Vec<Reason>,
    /// What is not published.
    pub backlog: BacklogCounts,
    /// The relays that are alive.
    pub relays: RelayCounts,
    /// Who owns the partitions.
    pub partitions: PartitionCounts,
    /// What is paused.
    pub pauses: Vec<PauseRow>,
    /// The consumers of the stream; `None` if they were not checked.
    pub consumers: Option<ConsumerCounts>,
}

impl Status {
    /// Adds the cause of other reasons, before them.
    pub fn add_cause(&mut self, state: State, what: impl Into<String>, next: impl Into<Next>) {
        self.reasons.insert(0, Reason::new(state, what, next));
        self.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.state));
        self.state = self.state.max(state);
    }

    /// Adds a reason that this crate does not know of.
    pub fn add(&mut self, state: State, what: impl Into<String>, next: impl Into<Next>) {
        self.reasons.push(Reason::new(state, what, next));
        self.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.state));
        self.state = self.state.max(state);
    }

    /// Adds the consumers of the stream, and what is wrong with them.
    pub fn see_consumers(&mut self, rows: &[ConsumerRow]) {
        let none = rows.is_empty().then_some(0);
        let mut counts = ConsumerCounts {
            dead_letters_open: none,
            paused: none.map(|_| 0),
            ..ConsumerCounts::default()
        };
        for row in rows {
            counts.all += 1;
            counts.well += u32::from(row.state == State::Well);
            // A table that tells one tells the other.
            if let Some(open) = row.dead_letters_open {
                *counts.dead_letters_open.get_or_insert_default() += open;
                *counts.paused.get_or_insert_default() += u32::from(row.paused.is_some());
            }
            for reason in &row.reasons {
                let what = format!("consumer {}: {}", row.consumer, reason.what);
                self.add(reason.state, what, reason.next.clone());
            }
        }
        self.consumers = Some(counts);
    }
}

/// Counts of what is not published; each stops at 100,000.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct BacklogCounts {
    /// Messages that are not yet published, waiting ones included, without dead letters.
    pub pending: u64,
    /// Whether `pending` is exact. Otherwise counting has stopped, and there are that many or more.
    pub pending_is_exact: bool,
    /// As `pending`; if that is not exact, an estimate by row ids, which may include messages that are published.
    pub pending_estimate: u64,
    /// Of those, messages that wait for their aggregate or their own time.
    pub waiting: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Aggregates that wait for an operator.
    pub halted_aggregates: u64,
    /// Aggregates whose block has not ended, halted ones included.
    pub blocked_aggregates: u64,
    /// How long the oldest unpublished message has been due, failed messages included; delayed, paused and halted messages do not count.
    #[serde(
        rename = "oldest_unpublished_seconds",
        serialize_with = "serial::seconds_if_any"
    )]
    pub oldest_unpublished: Option<Duration>,
}

impl From<Backlog> for BacklogCounts {
    fn from(backlog: Backlog) -> Self {
        Self {
            pending: backlog.pending,
            pending_is_exact: backlog.is_exact(),
            pending_estimate: backlog.pending_estimate,
            waiting: backlog.waiting,
            dead_letters: backlog.dead_letters,
            halted_aggregates: backlog.halted_aggregates,
            blocked_aggregates: backlog.blocked_aggregates,
            oldest_unpublished: backlog.oldest_unpublished,
        }
    }
}

impl BacklogCounts {
    /// The pending messages for people: `12`, or `100,000+ (about 2,000,000)`.
    #[must_use]
    pub fn pending_text(&self) -> String {
        match self.pending_is_exact {
            true => self.pending.to_string(),
            false => format!(
                "{} (about {})",
                at_least(self.pending),
                with_commas(self.pending_estimate)
            ),
        }
    }

    /// Another of these counts for people: `12` or `100,000+`.
    #[must_use]
    pub fn text(count: u64) -> String {
        match count {
            BACKLOG_COUNT_MAX.. => at_least(count),
            count => count.to_string(),
        }
    }
}

/// Live relays, by what they say of themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RelayCounts {
    /// All of them.
    pub alive: u32,
    /// Published successfully of late.
    pub fit: u32,
    /// Had nothing to publish.
    pub unproven: u32,
    /// Were ailing and try again.
    pub trying: u32,
    /// Do not reach the broker, or cannot fetch or settle.
    pub ailing: u32,
}

impl RelayCounts {
    pub(crate) fn new(relays: &[LiveRelay]) -> Self {
        let mut counts = Self::default();
        for relay in relays {
            counts.alive += 1;
            let counted = match relay.fitness {
                Fitness::Fit => &mut counts.fit,
                Fitness::Unproven => &mut counts.unproven,
                Fitness::Trying => &mut counts.trying,
                Fitness::Ailing => &mut counts.ailing,
            };
            *counted += 1;
        }
        counts
    }
}

/// The consumers of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConsumerCounts {
    /// All of them, and paused ones that the stream does not have.
    pub all: u32,
    /// Those with which nothing is wrong.
    pub well: u32,
    /// Paused consumers; `None` if no pause could be read.
    pub paused: Option<u32>,
    /// Open dead letters, each consumer counted to 10,000; `None` if none could be read. Consumers
    /// whose dead letters could not be read are left out.
    pub dead_letters_open: Option<u64>,
}

/// How many partitions have an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartitionCounts {
    /// Those that a relay owns.
    pub owned: u16,
    /// All of them.
    pub all: u16,
}

/// What a look at the stream has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerCheck {
    /// Nobody has looked.
    NotAsked,
    /// The stream is there and takes messages. The texts are warnings about its settings.
    Checked(Vec<String>),
    /// This program does not reach the broker, or the stream cannot take messages.
    Failed(String),
}

/// Reads how an outbox stands: four reads of the database, a fifth one if messages wait, and what the caller has found out about the stream.
///
/// # Errors
///
/// [`StoreError`].
pub async fn status(store: &impl OutboxReader, broker: &BrokerCheck) -> Result<Status, StoreError> {
    let backlog = BacklogCounts::from(store.backlog().await?);
    let facts = RelayFacts::read(store).await?;
    let (relays, partitions) = (RelayCounts::new(&facts.live), facts.partitions);
    let pauses = crate::pause::pauses(store).await?;
    let mut reasons = of_pauses(&pauses);
    reasons.extend(of_relays(&backlog, &facts));
    reasons.extend(of_messages(&backlog));
    if backlog.waiting > 0 {
        let failing = failing::failing(store).await?;
        reasons.extend(failing.map(|failing| failing.reason()));
    }
    reasons.extend(of_broker(broker));
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.state));
    Ok(Status {
        state: reasons.first().map_or(State::Well, |reason| reason.state),
        reasons,
        backlog,
        relays,
        partitions,
        pauses,
        consumers: None,
    })
}

/// Before what follows from them.
fn of_pauses(pauses: &[PauseRow]) -> Vec<Reason> {
    let reason = |pause: &PauseRow| Reason::new(State::Degraded, pause.sentence(), pause.unpause());
    pauses.iter().map(reason).collect()
}

fn of_messages(backlog: &BacklogCounts) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if backlog.halted_aggregates > 0 {
        let what = counted(
            backlog.halted_aggregates,
            "aggregate is halted by a dead letter and waits for an operator",
            "aggregates are halted by dead letters and wait for an operator",
        );
        reasons.push(Reason::new(State::Degraded, what, "outbox list --status dead"));
    }
    if backlog.dead_letters > backlog.halted_aggregates {
        let others = backlog.dead_letters - backlog.halted_aggregates;
        let what = counted(others, "dead letter halts nothing", "dead letters halt nothing");
        reasons.push(Reason::new(State::Degraded, what, "outbox list --status dead"));
    }
    reasons
}

fn of_broker(broker: &BrokerCheck) -> Vec<Reason> {
    const NEXT: &str = "outbox doctor";
    match broker {
        BrokerCheck::NotAsked => Vec::new(),
        BrokerCheck::Checked(warnings) => warnings
            .iter()
            .map(|warning| Reason::new(State::Degraded, warning, NEXT))
            .collect(),
        BrokerCheck::Failed(error) => vec![Reason::new(State::Degraded, error, NEXT)],
    }
}

impl Failing {
    /// What `status` says of it. It does not go on until somebody acts if the subject is wrong; anything else may pass.
    pub(crate) fn reason(&self) -> Reason {
        let messages = counted(
            self.messages,
            "message fails again and again",
            "messages fail again and again",
        );
        let what = format!(
            "{messages}, one of them {} times by now: {}",
            self.failures, self.error
        );
        match self.subject {
            Some(_) => Reason::new(State::Stuck, what, "outbox doctor"),
            None => Reason::new(State::Degraded, what, Command::from("outbox why").arg(self.id)),
        }
    }
}

#[cfg(test)]
mod tests;
