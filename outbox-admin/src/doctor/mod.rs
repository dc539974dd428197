//! Whether database, stream, consumers and settings fit together, before or while something is wrong.
//!
//! The judgement is made of pure functions over facts; the list of checks is closed. Invariants: nothing is changed; each finding has what was seen, what is
//! needed, and what mends it. Not here: how far the work has come, see [`status`](fn@crate::status).

mod broker;
mod database;
mod full;
mod handlers;
mod rules;
mod stream;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

pub use broker::{ConsumerFacts, MAX_BYTES, of_consumer, of_stream};
pub use database::{
    DatabaseFacts, OldTransaction, ReplicationSlot, database_facts, database_time, inbox_memory, only_reads,
};
pub use handlers::{HandlerFacts, of_handlers};
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
    /// No transaction has been open for long.
    LongTransaction,
    /// No prepared transaction was left behind.
    PreparedTransaction,
    /// No replication slot keeps much of the server's disk.
    ReplicationSlot,
    /// PostgreSQL removes dead rows by itself.
    Autovacuum,
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
    /// A consumer whose handlers are linked into this program asks the broker for their events and for no others.
    Handlers,
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

impl Check {
    /// All checks.
    pub const ALL: [Self; 33] = [
        Self::Database,
        Self::DatabaseVersion,
        Self::Tables,
        Self::Rights,
        Self::DatabaseSetting,
        Self::Clock,
        Self::LongTransaction,
        Self::PreparedTransaction,
        Self::ReplicationSlot,
        Self::Autovacuum,
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
        Self::Handlers,
        Self::ConsumerSettings,
        Self::ConsumerPaused,
        Self::ConsumerBehind,
        Self::ConsumerDeadLetters,
        Self::InboxMemory,
    ];

    /// The check as a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::DatabaseVersion => "database-version",
            Self::Tables => "tables",
            Self::Rights => "rights",
            Self::DatabaseSetting => "database-setting",
            Self::Clock => "clock",
            Self::LongTransaction => "long-transaction",
            Self::PreparedTransaction => "prepared-transaction",
            Self::ReplicationSlot => "replication-slot",
            Self::Autovacuum => "autovacuum",
            Self::Numbers => "numbers",
            Self::Relays => "relays",
            Self::Leases => "leases",
            Self::RowSecurity => "row-security",
            Self::Pauses => "pauses",
            Self::Log => "log",
            Self::Nats => "nats",
            Self::Stream => "stream",
            Self::DuplicateWindow => "duplicate-window",
            Self::MaxAge => "max-age",
            Self::Discard => "discard",
            Self::MaxBytes => "max-bytes",
            Self::StreamRetention => "stream-retention",
            Self::Replicas => "replicas",
            Self::MaxMessagesPerSubject => "max-messages-per-subject",
            Self::PayloadLimit => "payload-limit",
            Self::NatsVersion => "nats-version",
            Self::Handlers => "handlers",
            Self::ConsumerSettings => "consumer-settings",
            Self::ConsumerPaused => "consumer-paused",
            Self::ConsumerBehind => "consumer-behind",
            Self::ConsumerDeadLetters => "consumer-dead-letters",
            Self::InboxMemory => "inbox-memory",
        }
    }
}

/// Something that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Which check has found it.
    pub check: Check,
    /// How bad it is.
    pub state: State,
    /// What it is about: a consumer, a table, a slot; empty if the check says it.
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

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckVerdict {
    /// It was made, and found nothing.
    NoFinding,
    /// It found something this bad.
    Finding(State),
    /// It was not made.
    NotChecked,
}

impl CheckVerdict {
    /// The verdict as words: `no finding`, `degraded`, `stuck` or `not checked`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoFinding => "no finding",
            Self::Finding(state) => state.as_str(),
            Self::NotChecked => "not checked",
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

    /// What came of a check. One that was not noted as made is not checked, unless it has a finding.
    #[must_use]
    pub fn verdict(&self, check: Check) -> CheckVerdict {
        let findings = self.findings.iter().filter(|finding| finding.check == check);
        match findings.map(|finding| finding.state).max() {
            Some(state) => CheckVerdict::Finding(state),
            None if self.made.contains(&check) => CheckVerdict::NoFinding,
            None => CheckVerdict::NotChecked,
        }
    }

    /// The checks that were not made.
    #[must_use]
    pub fn not_checked(&self) -> Vec<Check> {
        let is_not = |check: &Check| self.verdict(*check) == CheckVerdict::NotChecked;
        Check::ALL.into_iter().filter(is_not).collect()
    }

    /// How many checks were made, and how many findings there are: `33 checks, 1 finding`, or `32 of 33 checks, 1 finding; 1 check was not made`.
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

/// From where on something is a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest time that a transaction may be open. Default: 10 minutes.
    pub transaction: Duration,
    /// The most bytes that a replication slot may keep. Default: 1 GiB.
    pub slot_bytes: u64,
    /// The largest difference of the clocks. Default: 5 seconds.
    pub clocks: Duration,
    /// The longest time that publishing may be paused. Default: a day.
    pub pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            transaction: Duration::from_mins(10),
            slot_bytes: 1 << 30,
            clocks: Duration::from_secs(5),
            pause: Duration::from_hours(24),
        }
    }
}

impl Limits {
    /// Sets the longest time that a transaction may be open.
    #[must_use]
    pub fn transaction(mut self, transaction: Duration) -> Self {
        self.transaction = transaction;
        self
    }

    /// Sets the longest time that publishing may be paused.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets the most bytes that a replication slot may keep.
    #[must_use]
    pub fn slot_bytes(mut self, slot_bytes: u64) -> Self {
        self.slot_bytes = slot_bytes;
        self
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
        assert_eq!(found.verdict(Check::Stream), CheckVerdict::NotChecked);
        assert_eq!(found.verdict(Check::Nats), CheckVerdict::NoFinding);
        found
            .findings
            .push(Diagnosis::failed(Check::Stream, "none", "one", "outbox doctor"));
        assert_eq!(found.verdict(Check::Stream), CheckVerdict::Finding(State::Stuck));
        assert_eq!(found.tally(), format!("{all} checks, 1 finding"));
    }
}
