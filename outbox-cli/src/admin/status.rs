//! Health of an outbox.
//!
//! Invariant: every reason has a next step.

mod relays;

use std::time::Duration;

use outbox::core::store::BACKLOG_COUNT_MAX;
use outbox::core::{Backlog, LiveRelay, OutboxReader, RelayHealth, StoreError};
use serde::Serialize;

use crate::admin::consumers::ConsumerRow;
use crate::admin::failing::failing;
use crate::admin::next::Next;
use crate::admin::pause::PauseRow;
use crate::admin::serial;
use crate::admin::verdict::{Reason, State};
use crate::admin::words::{at_least, counted, with_commas};

use relays::{RelayFacts, of_relays};

/// Health of an outbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// State of the worst reason.
    pub state: State,
    /// Problems, worst first.
    pub reasons: Vec<Reason>,
    /// Unpublished messages.
    pub backlog: BacklogCounts,
    /// Live relays.
    pub relays: RelayCounts,
    /// Owned partitions.
    pub partitions: PartitionCounts,
    /// Active pauses.
    pub pauses: Vec<PauseRow>,
    /// Consumers of the stream; `None` if not checked.
    pub consumers: Option<ConsumerCounts>,
}

impl Status {
    /// Adds a cause, before other reasons of the same state.
    pub fn add_cause(&mut self, state: State, what: impl Into<String>, next: impl Into<Next>) {
        self.reasons.insert(0, Reason::new(state, what, next));
        self.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.state));
        self.state = self.state.max(state);
    }

    /// Adds a reason.
    pub fn add(&mut self, state: State, what: impl Into<String>, next: impl Into<Next>) {
        self.reasons.push(Reason::new(state, what, next));
        self.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.state));
        self.state = self.state.max(state);
    }

    /// Adds consumers.
    pub fn see_consumers<'a>(&mut self, rows: impl IntoIterator<Item = &'a ConsumerRow>) {
        let mut counts = ConsumerCounts::default();
        for row in rows {
            counts.all += 1;
            counts.healthy += u32::from(row.state == State::Healthy);
            if let Some(open) = row.dead_letters_open {
                *counts.dead_letters_open.get_or_insert_default() += open;
                *counts.paused.get_or_insert_default() += u32::from(row.paused.is_some());
            }
            for reason in &row.reasons {
                let what = format!("consumer {}: {}", row.consumer, reason.what);
                self.add(reason.state, what, reason.next.clone());
            }
        }
        if counts.all == 0 {
            (counts.dead_letters_open, counts.paused) = (Some(0), Some(0));
        }
        self.consumers = Some(counts);
    }
}

/// Counts of unpublished messages, each at most 100,000.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BacklogCounts {
    /// Messages to be published, with waiting messages, without dead letters.
    pub pending: u64,
    /// Whether `pending` is exact, not a lower bound.
    pub pending_is_exact: bool,
    /// `pending`, or an estimate that may include published messages.
    pub pending_estimate: u64,
    /// Deferred messages.
    pub deferred: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Halted aggregates.
    pub halted_aggregates: u64,
    /// Blocked aggregates, including halted aggregates.
    pub blocked_aggregates: u64,
    /// How long the oldest message has been due, without delayed, paused and halted messages.
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
            deferred: backlog.waiting,
            dead_letters: backlog.dead_letters,
            halted_aggregates: backlog.halted_aggregates,
            blocked_aggregates: backlog.blocked_aggregates,
            oldest_unpublished: backlog.oldest_unpublished,
        }
    }
}

impl BacklogCounts {
    /// `pending` for people: `12`, or `100,000+ (about 2,000,000)`.
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

    /// Formats another count: `12` or `100,000+`.
    pub fn text(count: u64) -> String {
        match count {
            BACKLOG_COUNT_MAX.. => at_least(count),
            count => count.to_string(),
        }
    }
}

/// Live relays by reported health.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RelayCounts {
    /// All live relays.
    pub alive: u32,
    /// Published recently.
    pub healthy: u32,
    /// Nothing published yet.
    pub unknown: u32,
    /// Recovering.
    pub recovering: u32,
    /// Relays that cannot reach the broker, read messages or store results.
    pub unhealthy: u32,
}

impl RelayCounts {
    pub(crate) fn new(relays: &[LiveRelay]) -> Self {
        let mut counts = Self::default();
        for relay in relays {
            counts.alive += 1;
            let counted = match relay.health {
                RelayHealth::Healthy => &mut counts.healthy,
                RelayHealth::Unknown => &mut counts.unknown,
                RelayHealth::Recovering => &mut counts.recovering,
                RelayHealth::Unhealthy => &mut counts.unhealthy,
            };
            *counted += 1;
        }
        counts
    }
}

/// Counts of consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerCounts {
    /// All consumers, including paused consumers missing on the stream.
    pub all: u32,
    /// Consumers without problems.
    pub healthy: u32,
    /// Paused consumers; `None` if unreadable.
    pub paused: Option<u32>,
    /// Open dead letters, at most 10,000 per consumer; `None` if all are unreadable.
    pub dead_letters_open: Option<u64>,
}

/// Partition counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PartitionCounts {
    /// Partitions owned by a relay.
    pub owned: u16,
    /// All partitions.
    pub all: u16,
}

/// Result of a stream check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerCheck {
    /// Not checked.
    NotAsked,
    /// Usable stream, with warnings.
    Checked(Vec<String>),
    /// Unreachable or unusable stream.
    Failed(String),
}

/// Reads the health, in four or five database reads. `broker` is the caller's stream check.
///
/// # Errors
///
/// [`StoreError`].
pub async fn status(store: &impl OutboxReader, broker: &BrokerCheck) -> Result<Status, StoreError> {
    let backlog = BacklogCounts::from(store.backlog().await?);
    let facts = RelayFacts::read(store).await?;
    let (relays, partitions) = (RelayCounts::new(&facts.live), facts.partitions);
    let pauses = crate::admin::pause::pauses(store).await?;
    let mut reasons = of_pauses(&pauses);
    reasons.extend(of_relays(&backlog, &facts));
    reasons.extend(of_messages(&backlog));
    if backlog.deferred > 0 {
        reasons.extend(failing(store).await?.map(|failing| failing.reason()));
    }
    reasons.extend(of_broker(broker));
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.state));
    Ok(Status {
        state: reasons.first().map_or(State::Healthy, |reason| reason.state),
        reasons,
        backlog,
        relays,
        partitions,
        pauses,
        consumers: None,
    })
}

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
        let what = counted(
            others,
            "dead letter halts no aggregate",
            "dead letters halt no aggregate",
        );
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

#[cfg(test)]
mod tests;
