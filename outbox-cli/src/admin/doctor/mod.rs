//! Checks whether database, stream, consumers and settings fit together.
//!
//! Rules are pure functions over facts.

mod broker;
mod database;
mod rules;
mod stream;

use std::fmt;
use std::ops::RangeInclusive;

use clap::ValueEnum;
use serde::Serialize;

pub use broker::{MAX_BYTES, of_consumer, of_stream};
pub use database::{DatabaseFacts, database_facts, inbox_memory, only_reads};
pub use rules::{PauseFacts, of_database, of_leases, of_pauses, of_relays, of_setup};
pub use stream::{StreamFacts, WITHOUT_LIMIT_PER_SUBJECT, Wanted, doubled};

use crate::admin::next::Next;
use crate::admin::verdict::State;

/// All checks of the doctor. Requirements: guide page 14. Checks of one read are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Database reachable.
    Database,
    /// Supported database version.
    DatabaseVersion,
    /// Table version.
    Tables,
    /// Relay rights.
    Rights,
    /// Database settings.
    DatabaseSetting,
    /// Row-level security.
    RowSecurity,
    /// Clock difference.
    Clock,
    /// Aggregate sequences.
    Numbers,
    /// Relays.
    Relays,
    /// Lease rows.
    Leases,
    /// Publishing pauses.
    Pauses,
    /// Log and reader.
    Log,
    /// NATS access.
    Nats,
    /// Stream and subjects.
    Stream,
    /// Duplicate window.
    DuplicateWindow,
    /// Stream `max_age`.
    MaxAge,
    /// Discard policy.
    Discard,
    /// Stream size.
    MaxBytes,
    /// Retention policy.
    StreamRetention,
    /// Replicas and storage.
    Replicas,
    /// Limit per subject.
    MaxMessagesPerSubject,
    /// Message size.
    PayloadLimit,
    /// Supported nats-server version.
    NatsVersion,
    /// Consumer lag.
    ConsumerBehind,
    /// Paused consumers.
    ConsumerPaused,
    /// Open dead letters.
    ConsumerDeadLetters,
    /// Inbox retention.
    InboxMemory,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The check.
    pub check: Check,
    /// Severity.
    pub state: State,
    /// Consumer or table; empty if the check has no such object.
    pub subject: String,
    /// Observed value.
    pub seen: String,
    /// Required value.
    pub needed: String,
    /// The repair.
    #[serde(flatten)]
    pub next: Next,
}

impl Diagnosis {
    /// A [`State::Stuck`] finding for an error.
    pub fn failed(check: Check, seen: impl Into<String>, needed: &str, next: impl Into<Next>) -> Self {
        Self::new(check, State::Stuck, ("", seen), needed, next)
    }

    /// A finding.
    pub fn new(
        check: Check,
        state: State,
        (subject, seen): (&str, impl Into<String>),
        needed: impl Into<String>,
        next: impl Into<Next>,
    ) -> Self {
        Self {
            check,
            state,
            subject: subject.to_owned(),
            seen: seen.into(),
            needed: needed.into(),
            next: next.into(),
        }
    }
}

/// Results of the checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Examination {
    /// Findings.
    pub findings: Vec<Diagnosis>,
    /// Unreadable facts.
    pub unseen: Vec<String>,
    made: Vec<RangeInclusive<Check>>,
}

impl Examination {
    /// Marks checks as done, from the first to the last.
    pub fn made(&mut self, checks: RangeInclusive<Check>) {
        self.made.push(checks);
    }

    /// Checks without a result.
    pub fn not_checked(&self) -> Vec<Check> {
        let is_made = |check: &Check| {
            let mut found = self.findings.iter().map(|finding| finding.check);
            self.made.iter().any(|made| made.contains(check)) || found.any(|found| found == *check)
        };
        let all = Check::value_variants().iter().copied();
        all.filter(|check| !is_made(check)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_check_is_listed_as_not_checked() {
        let mut found = Examination::default();
        assert_eq!(found.not_checked(), Check::value_variants());
        found.made(Check::Database..=Check::Nats);
        found.made(Check::DuplicateWindow..=Check::InboxMemory);
        assert_eq!(found.not_checked(), [Check::Stream]);
        let missing = Diagnosis::failed(Check::Stream, "none", "one", "outbox doctor");
        found.findings.push(missing);
        assert_eq!(found.not_checked(), []);
    }
}
