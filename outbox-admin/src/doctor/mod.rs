//! Checks whether database, stream, consumers and settings fit together.
//!
//! Rules are pure functions over facts. Invariant: checks only read, and every finding has a
//! seen value, a needed value and a repair. For the progress of the work see
//! [`status`](fn@crate::status).

mod broker;
mod database;
mod full;
mod rules;
mod stream;

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

pub use broker::{ConsumerFacts, MAX_BYTES, of_consumer, of_stream};
pub use database::{DatabaseFacts, database_facts, inbox_memory, only_reads};
pub use rules::{PauseFacts, of_database, of_leases, of_pauses, of_relays, of_setup};
pub use stream::{StreamFacts, WITHOUT_LIMIT_PER_SUBJECT, Wanted};

use crate::next::Next;
use crate::verdict::State;
use crate::words::{count, counted};

/// The closed list of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Check {
    /// The database answers and accepts the login.
    Database,
    /// The version of the database server is supported.
    DatabaseVersion,
    /// The tables exist and have this version.
    Tables,
    /// The login has the rights of a relay.
    Rights,
    /// No database setting delays or loses messages.
    DatabaseSetting,
    /// The database clock and the local clock agree.
    Clock,
    /// `outbox_aggregates` covers the sequences of the newest messages.
    Numbers,
    /// A relay is alive, live relays work, and all publish to one destination.
    Relays,
    /// Every partition has a lease row, and no lease exceeds the maximum lease time.
    Leases,
    /// No row-level security hides rows.
    RowSecurity,
    /// No pause is old or matches nothing, and every held message has a pause.
    Pauses,
    /// The log of the database is set up and read by a relay, if the outbox uses one.
    Log,
    /// NATS answers, accepts the login and grants the rights needed by the checks.
    Nats,
    /// The stream exists, captures this outbox's subjects and has room.
    Stream,
    /// The duplicate window is long enough.
    DuplicateWindow,
    /// The stream keeps messages at least as long as the outbox.
    MaxAge,
    /// A full stream rejects new messages instead of dropping old ones.
    Discard,
    /// The stream has a size limit.
    MaxBytes,
    /// The stream keeps messages after they were read.
    StreamRetention,
    /// Confirmed messages survive the loss of a server.
    Replicas,
    /// The stream has no limit per subject.
    MaxMessagesPerSubject,
    /// The stream accepts messages of every permitted size.
    PayloadLimit,
    /// The version of nats-server is supported.
    NatsVersion,
    /// A durable consumer has the settings an inbox needs.
    ConsumerSettings,
    /// No consumer is paused.
    ConsumerPaused,
    /// Consumers read messages before the stream deletes them.
    ConsumerBehind,
    /// No consumer has open dead letters.
    ConsumerDeadLetters,
    /// Inboxes remember messages longer than the stream keeps them.
    InboxMemory,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Check {
    /// All checks.
    pub const ALL: [Self; 28] = [
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
        Self::ConsumerSettings,
        Self::ConsumerPaused,
        Self::ConsumerBehind,
        Self::ConsumerDeadLetters,
        Self::InboxMemory,
    ];
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The check.
    pub check: Check,
    /// Severity.
    pub state: State,
    /// Subject, such as a consumer or a table; empty if the check names it.
    pub subject: String,
    /// Value or error seen.
    pub seen: String,
    /// Value needed, and why.
    pub needed: String,
    /// The repair.
    #[serde(flatten)]
    pub next: Next,
}

impl Diagnosis {
    /// A finding of state [`State::Stuck`] for a check that failed with an error.
    #[must_use]
    pub fn failed(check: Check, seen: impl Into<String>, needed: &str, next: impl Into<Next>) -> Self {
        Self::new(check, State::Stuck, ("", seen), needed, next)
    }

    /// A finding with its subject, the seen value, the needed value and the repair.
    #[must_use]
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

/// Result of the checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Examination {
    /// Findings.
    pub findings: Vec<Diagnosis>,
    /// Facts that could not be read, for people.
    pub unseen: Vec<String>,
    made: BTreeSet<Check>,
}

impl Examination {
    /// Marks checks as done.
    pub fn made(&mut self, checks: impl IntoIterator<Item = Check>) {
        self.made.extend(checks);
    }

    /// Checks that neither ran nor have a finding.
    #[must_use]
    pub fn not_checked(&self) -> Vec<Check> {
        let has_finding = |check: &Check| self.findings.iter().any(|finding| finding.check == *check);
        let is_not = |check: &Check| !self.made.contains(check) && !has_finding(check);
        Check::ALL.into_iter().filter(is_not).collect()
    }

    /// Number of checks and findings: `28 checks, 1 finding`, or `27 of 28 checks, 1 finding; 1
    /// check was not made`.
    #[must_use]
    pub fn tally(&self) -> String {
        let (all, unmade) = (Check::ALL.len(), self.not_checked().len());
        let found = counted(count(self.findings.len()), "finding", "findings");
        match unmade {
            0 => format!("{all} checks, {found}"),
            _ => format!(
                "{} of {all} checks, {found}; {}",
                all - unmade,
                counted(count(unmade), "check was not made", "checks were not made")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_was_not_made_is_not_checked() {
        let mut found = Examination::default();
        assert_eq!(found.not_checked(), Check::ALL);
        found.made(Check::ALL.into_iter().filter(|check| *check != Check::Stream));
        let all = Check::ALL.len();
        assert_eq!(
            found.tally(),
            format!("{} of {all} checks, 0 findings; 1 check was not made", all - 1)
        );
        found
            .findings
            .push(Diagnosis::failed(Check::Stream, "none", "one", "outbox doctor"));
        assert_eq!(found.tally(), format!("{all} checks, 1 finding"));
    }
}
