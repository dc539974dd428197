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
use crate::status::State;
use crate::words::{count, counted};

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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
    /// An inbox remembers a message longer than the stream keeps it.
    InboxMemory,
}

impl Check {
    /// All checks.
    pub const ALL: [Self; 31] = [
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

/// How many checks there are, and how many findings: `31 checks, 1 finding`. If something could not be looked at, not all checks could be made; then it says so, and where
/// that is `listed`: `above` or `below`.
#[must_use]
pub fn tally(findings: usize, unseen: &[String], listed: &str) -> String {
    let found = counted(count(findings), "finding", "findings");
    let tally = format!("{} checks, {found}", Check::ALL.len());
    match unseen.is_empty() {
        true => tally,
        false => format!("{tally}; not all could be made: see {listed}"),
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
    fn checks_that_could_not_be_made_are_not_counted_as_made() {
        assert_eq!(tally(0, &[], "below"), "31 checks, 0 findings");
        let unseen = ["the log".to_owned()];
        assert_eq!(
            tally(1, &unseen, "below"),
            "31 checks, 1 finding; not all could be made: see below"
        );
    }
}
