//! Whether database, stream, consumers and settings fit together, before or while something is wrong.
//!
//! The judgement is made of pure functions over facts; the list of checks is closed. Invariants: nothing is changed; each finding has what was seen, what is
//! needed, and what mends it. Not here: how far the work has come, see [`status`](fn@crate::status).

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

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Check {
    /// The database answers and accepts the login.
    Database,
    /// The version of the database's server is supported.
    DatabaseVersion,
    /// The tables are there, and are those of this version.
    Tables,
    /// The login has the rights of a relay.
    Rights,
    /// Settings of the database with which messages would be late or lost.
    DatabaseSetting,
    /// The clocks of the database and of this machine agree.
    Clock,
    /// `outbox_aggregates` has assigned the numbers of the newest messages.
    Numbers,
    /// A relay is alive, live relays do their work, and all publish to one destination.
    Relays,
    /// Each partition has a lease row, and no lease ends later than leases last.
    Leases,
    /// No row-level security hides rows of the tables.
    RowSecurity,
    /// No pause of publishing was forgotten or holds nothing, and nothing is held without one.
    Pauses,
    /// The database's log is set up, if the outbox has one, and a relay reads it.
    Log,
    /// NATS answers, accepts the login, and denies it nothing that is looked at.
    Nats,
    /// The stream is there, takes the messages of this outbox, and has room for the next one.
    Stream,
    /// The stream drops a second copy for long enough.
    DuplicateWindow,
    /// The stream keeps messages at least as long as the outbox.
    MaxAge,
    /// A full stream refuses, and drops nothing.
    Discard,
    /// The stream has a bound.
    MaxBytes,
    /// The stream keeps messages whether they were read or not.
    StreamRetention,
    /// What was confirmed survives a server.
    Replicas,
    /// The stream keeps all messages of a subject.
    MaxMessagesPerSubject,
    /// Messages of any permitted size are taken.
    PayloadLimit,
    /// The version of nats-server is supported.
    NatsVersion,
    /// A durable consumer has the settings that an inbox needs.
    ConsumerSettings,
    /// A consumer is not paused.
    ConsumerPaused,
    /// A consumer reads its messages before the stream deletes them.
    ConsumerBehind,
    /// A consumer has no open dead letters.
    ConsumerDeadLetters,
    /// An inbox remembers a message longer than the stream keeps it.
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

/// Something that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Which check has found it.
    pub check: Check,
    /// How bad it is.
    pub state: State,
    /// What it is about: a consumer, a table; empty if the check says it.
    pub subject: String,
    /// What was seen.
    pub seen: String,
    /// What is needed, and why.
    pub needed: String,
    /// What mends it.
    #[serde(flatten)]
    pub next: Next,
}

impl Diagnosis {
    /// A finding of which nothing is known but an error.
    #[must_use]
    pub fn failed(check: Check, seen: impl Into<String>, needed: &str, next: impl Into<Next>) -> Self {
        Self::new(check, State::Stuck, ("", seen), needed, next)
    }

    /// A finding, with its subject, the value seen, the value needed, and the next step.
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

/// What the checks have found, and which of them were made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Examination {
    /// What does not fit.
    pub findings: Vec<Diagnosis>,
    /// What could not be looked at, for people.
    pub unseen: Vec<String>,
    made: BTreeSet<Check>,
}

impl Examination {
    /// Notes that these checks were made.
    pub fn made(&mut self, checks: impl IntoIterator<Item = Check>) {
        self.made.extend(checks);
    }

    /// The checks that neither were made nor have a finding.
    #[must_use]
    pub fn not_checked(&self) -> Vec<Check> {
        let has_finding = |check: &Check| self.findings.iter().any(|finding| finding.check == *check);
        let is_not = |check: &Check| !self.made.contains(check) && !has_finding(check);
        Check::ALL.into_iter().filter(is_not).collect()
    }

    /// How many checks were made, and how many findings there are: `28 checks, 1 finding`, or `27 of 28 checks, 1 finding; 1 check was not made`.
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
