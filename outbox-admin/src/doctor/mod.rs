//! Checks whether database, stream, consumers and settings fit together.
//!
//! Rules are pure functions over facts.

mod broker;
mod database;
mod rules;
mod stream;

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

pub use broker::{ConsumerFacts, MAX_BYTES, of_consumer, of_stream};
pub use database::{DatabaseFacts, database_facts, inbox_memory, only_reads};
pub use rules::{PauseFacts, of_database, of_leases, of_pauses, of_relays, of_setup};
pub use stream::{StreamFacts, WITHOUT_LIMIT_PER_SUBJECT, Wanted, doubled};

use crate::next::Next;
use crate::verdict::State;
use crate::words::{count, counted};

/// All checks of the doctor. Requirements: guide page 14.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
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
    /// Clock difference.
    Clock,
    /// Aggregate sequences.
    Numbers,
    /// Relays.
    Relays,
    /// Lease rows.
    Leases,
    /// Row-level security.
    RowSecurity,
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
    /// Paused consumers.
    ConsumerPaused,
    /// Consumer lag.
    ConsumerBehind,
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

impl Check {
    /// All checks.
    pub const ALL: [Self; 27] = [
        Self::Database,
        Self::DatabaseVersion,
        Self::Tables,
        Self::Rights,
        Self::DatabaseSetting,
        Self::Clock,
        Self::Numbers,
        Self::Relays,
        Self::Leases,
        Self::RowSecurity,
        Self::Pauses,
        Self::Log,
        Self::Nats,
        Self::Stream,
        Self::DuplicateWindow,
        Self::MaxAge,
        Self::Discard,
        Self::MaxBytes,
        Self::StreamRetention,
        Self::Replicas,
        Self::MaxMessagesPerSubject,
        Self::PayloadLimit,
        Self::NatsVersion,
        Self::ConsumerPaused,
        Self::ConsumerBehind,
        Self::ConsumerDeadLetters,
        Self::InboxMemory,
    ];
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The check.
    pub check: Check,
    /// Severity.
    pub state: State,
    /// Consumer or table; empty if the check implies it.
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
    made: BTreeSet<Check>,
}

impl Examination {
    /// Marks checks as done.
    pub fn made(&mut self, checks: impl IntoIterator<Item = Check>) {
        self.made.extend(checks);
    }

    /// Checks without a result.
    pub fn not_checked(&self) -> Vec<Check> {
        let has_finding = |check: &Check| self.findings.iter().any(|finding| finding.check == *check);
        let is_not = |check: &Check| !self.made.contains(check) && !has_finding(check);
        Check::ALL.into_iter().filter(is_not).collect()
    }

    /// Summary: `27 checks, 1 finding`, or `26 of 27 checks, 1 finding; 1 check was skipped`.
    pub fn tally(&self) -> String {
        let (all, unmade) = (Check::ALL.len(), self.not_checked().len());
        let found = counted(count(self.findings.len()), "finding", "findings");
        match unmade {
            0 => format!("{all} checks, {found}"),
            _ => format!(
                "{} of {all} checks, {found}; {}",
                all - unmade,
                counted(count(unmade), "check was skipped", "checks were skipped")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_check_is_listed_as_not_checked() {
        let mut found = Examination::default();
        assert_eq!(found.not_checked(), Check::ALL);
        found.made(Check::ALL.into_iter().filter(|check| *check != Check::Stream));
        let all = Check::ALL.len();
        assert_eq!(
            found.tally(),
            format!("{} of {all} checks, 0 findings; 1 check was skipped", all - 1)
        );
        found
            .findings
            .push(Diagnosis::failed(Check::Stream, "none", "one", "outbox doctor"));
        assert_eq!(found.tally(), format!("{all} checks, 1 finding"));
    }
}
