//! One outbox: its database, its stream and its relay.
//!
//! Invariant: the defaults are those of [`EventStream`] and [`RelayConfig`]; none is written here a second time.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use ::outbox::core::{EventPolicy, PoisonPolicy, RelayConfig, Retention};
use ::outbox::log::LogConfig;
use ::outbox::nats::{EventStream, Provisioning, PublisherConfig, SubjectError};
use ::outbox::sea_orm::{NameError, TableNames};
use serde::Deserialize;

use super::{ConfigError, duration};

/// A text that is never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes a text that must not be shown.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text. Do not print it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// A table `[[outbox]]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OutboxSection {
    /// Its name: in metrics, in the log and in the names of environment variables. `[a-z][a-z0-9_]*`, at most 12 bytes. Default `outbox`.
    pub name: String,
    /// The database. Better in the environment.
    pub database_url: Option<Secret>,
    /// Connections to it, 2 or more. Default 3.
    pub connections: u32,
    /// The schema of the tables (MySQL and MariaDB: the database). Default: none.
    pub schema: Option<String>,
    /// A prefix of the table names. Default: none.
    pub prefix: String,
    /// The CloudEvents source of its messages (`ce-source`): the name of the service. Default `outbox`, with a warning.
    pub source: Option<String>,
    /// Whether missing tables are made at the start. Default: no.
    pub migrate: bool,
    /// Allows a database engine that was not tested, such as CockroachDB, YugabyteDB or TiDB. Default: false.
    pub allow_untested_engine: bool,
    /// Whether `outbox_record` for services in other languages is made too. Needs `migrate`. Default: no.
    pub writers: bool,
    /// The servers of NATS, separated by commas.
    pub nats_url: Option<Secret>,
    /// A credentials file of NATS.
    pub nats_credentials: Option<PathBuf>,
    /// Certificates that NATS servers are checked against. Default: those of the system, which count only then.
    pub nats_ca: Option<PathBuf>,
    /// Whether connections without TLS are refused. Default: no.
    pub nats_require_tls: bool,
    /// Events whose payloads operators may see. Default: none.
    pub events: Vec<EventSection>,
    /// The stream.
    pub stream: StreamSection,
    /// The relay.
    pub relay: RelaySection,
    /// The database's log, if the relay reads it.
    pub log: LogRelaySection,
}

/// An entry of `events`: an event whose payload operators may see, except for its sensitive fields.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct EventSection {
    /// The event type, such as `order.placed`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The version of its payload.
    pub version: u32,
    /// Names of fields that are masked, at any depth. It must be given, so that nobody forgets it.
    pub sensitive: Vec<String>,
}

impl Default for OutboxSection {
    fn default() -> Self {
        Self {
            name: "outbox".to_owned(),
            database_url: None,
            connections: 3,
            schema: None,
            prefix: String::new(),
            source: None,
            migrate: false,
            allow_untested_engine: false,
            writers: false,
            nats_url: None,
            nats_credentials: None,
            nats_ca: None,
            nats_require_tls: false,
            events: Vec::new(),
            stream: StreamSection::default(),
            relay: RelaySection::default(),
            log: LogRelaySection::default(),
        }
    }
}

/// A table `[outbox.stream]`: the settings of [`EventStream`], with its defaults.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StreamSection {
    /// Its name.
    pub name: String,
    /// The first tokens of the default subjects.
    pub prefix: String,
    /// More subjects that it captures, beside `<prefix>.>`: those of events with a fixed subject.
    pub subjects: Vec<String>,
    /// Whether it is made and changed where that is needed. Otherwise it is only checked.
    pub provision: bool,
    /// The time in which a second copy is dropped.
    #[serde(deserialize_with = "duration::optional")]
    pub duplicate_window: Option<Duration>,
    /// The age at which messages are deleted; `0s` for never.
    #[serde(deserialize_with = "duration::optional")]
    pub max_age: Option<Duration>,
    /// Its most bytes.
    pub max_bytes: Option<u64>,
    /// Copies in a cluster.
    pub replicas: Option<usize>,
    /// Strong mode.
    pub strong: bool,
    /// Subject shards.
    pub subject_shards: Option<u32>,
}

impl Default for StreamSection {
    fn default() -> Self {
        let stream = EventStream::default();
        Self {
            name: stream.name().to_owned(),
            prefix: stream.prefix().as_str().to_owned(),
            subjects: Vec::new(),
            provision: true,
            duplicate_window: None,
            max_age: None,
            max_bytes: None,
            replicas: None,
            strong: false,
            subject_shards: None,
        }
    }
}

impl StreamSection {
    /// The stream.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Prefix`].
    pub fn event_stream(&self) -> Result<EventStream, SubjectError> {
        let mut stream = EventStream::new(&self.name).with_prefix(&self.prefix)?;
        if !self.subjects.is_empty() {
            stream = stream.with_subject(format!("{}.>", self.prefix));
        }
        for subject in &self.subjects {
            stream = stream.with_subject(subject);
        }
        if !self.provision {
            stream = stream.with_provisioning(Provisioning::VerifyOnly);
        }
        if let Some(window) = self.duplicate_window {
            stream = stream.with_duplicate_window(window);
        }
        if let Some(age) = self.max_age {
            stream = stream.with_max_age(age);
        }
        if let Some(bytes) = self.max_bytes {
            stream = stream.with_max_bytes(bytes);
        }
        if let Some(replicas) = self.replicas {
            stream = stream.with_replicas(replicas);
        }
        if self.strong {
            stream = stream.with_strong_mode();
        }
        if let Some(shards) = self.subject_shards {
            stream = stream.with_subject_shards(shards);
        }
        Ok(stream)
    }
}

/// A table `[outbox.relay]`: the settings of [`RelayConfig`], with its defaults.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RelaySection {
    /// What it calls itself where relays are listed. Default: its host and process id.
    pub name: Option<String>,
    /// How long a partition is owned without renewal.
    #[serde(deserialize_with = "duration::deserialize")]
    pub lease_ttl: Duration,
    /// Messages per fetch.
    pub batch: NonZeroU32,
    /// Bytes of payload that wait in memory.
    pub buffer_bytes: usize,
    /// Unconfirmed messages at a time.
    pub window: usize,
    /// The shortest wait between polls while idle.
    #[serde(deserialize_with = "duration::deserialize")]
    pub poll_min: Duration,
    /// The longest wait between polls while idle.
    #[serde(deserialize_with = "duration::deserialize")]
    pub poll_max: Duration,
    /// How long an answer of the database is waited for.
    #[serde(deserialize_with = "duration::deserialize")]
    pub store_timeout: Duration,
    /// How long published messages are kept: a duration, `forever`, or `0s` to delete them at once.
    #[serde(deserialize_with = "retention")]
    pub retention: Retention,
    /// How long deduplication keys are kept.
    #[serde(deserialize_with = "duration::deserialize")]
    pub dedup_key_retention: Duration,
    /// How long a shutdown waits for confirmations.
    #[serde(deserialize_with = "duration::deserialize")]
    pub shutdown_timeout: Duration,
    /// How long nothing may be published, while something is due, before the relay counts as stuck.
    #[serde(deserialize_with = "duration::deserialize")]
    pub stuck_after: Duration,
    /// Refusals after which a message is a dead letter.
    pub attempts_max: u32,
    /// What becomes of the aggregate of a dead letter.
    pub on_poison: PoisonSection,
    /// Whether the relay starts although a live relay of this outbox publishes elsewhere or under another source, for a deliberate move. Default: no.
    pub allow_other_destination: bool,
}

/// What becomes of the aggregate of a dead letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PoisonSection {
    /// Later messages wait for an operator.
    #[default]
    Halt,
    /// Later messages go on.
    Continue,
}

impl Default for RelaySection {
    fn default() -> Self {
        let relay = RelayConfig::default();
        Self {
            name: None,
            lease_ttl: relay.lease_ttl,
            batch: relay.batch,
            buffer_bytes: relay.buffer_bytes,
            window: relay.window,
            poll_min: relay.poll_min,
            poll_max: relay.poll_max,
            store_timeout: relay.store_timeout,
            retention: relay.retention,
            dedup_key_retention: relay.dedup_key_retention,
            shutdown_timeout: relay.shutdown_timeout,
            stuck_after: relay.stuck_after,
            attempts_max: relay.policy.attempts_max,
            on_poison: PoisonSection::default(),
            allow_other_destination: relay.allow_other_destination,
        }
    }
}

impl RelaySection {
    /// The settings of the relay.
    #[must_use]
    pub fn relay_config(&self) -> RelayConfig {
        let on_poison = match self.on_poison {
            PoisonSection::Halt => PoisonPolicy::HaltAggregate,
            PoisonSection::Continue => PoisonPolicy::Continue,
        };
        let policy = EventPolicy::default()
            .attempts_max(self.attempts_max)
            .on_poison(on_poison);
        RelayConfig::default()
            .lease_ttl(self.lease_ttl)
            .batch(self.batch)
            .buffer_bytes(self.buffer_bytes)
            .window(self.window)
            .poll_min(self.poll_min)
            .poll_max(self.poll_max)
            .store_timeout(self.store_timeout)
            .retention(self.retention)
            .dedup_key_retention(self.dedup_key_retention)
            .shutdown_timeout(self.shutdown_timeout)
            .stuck_after(self.stuck_after)
            .allow_other_destination(self.allow_other_destination)
            .policy(policy)
    }
}

/// A table `[outbox.log]`: whether the relay reads the database's log, and the settings of [`LogConfig`], with its defaults.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LogRelaySection {
    /// Whether the relay reads the log. Otherwise it polls the table. Default: no.
    pub read: bool,
    /// The name of the log; its slot is called `<name>_log`. Default `outbox`.
    pub name: String,
    /// Where the log is read, if not at `database_url`. It must not ask for TLS.
    pub url: Option<Secret>,
    /// How often the position is stored.
    #[serde(deserialize_with = "duration::deserialize")]
    pub checkpoint_every: Duration,
    /// Messages in memory that are not decided.
    pub window: usize,
    /// Bytes of their payloads.
    pub window_bytes: usize,
    /// Bytes of the database's disk beyond which the table takes over.
    pub retained_max: u64,
}

impl Default for LogRelaySection {
    fn default() -> Self {
        let log = LogConfig::default();
        Self {
            read: false,
            name: "outbox".to_owned(),
            url: None,
            checkpoint_every: log.checkpoint_every,
            window: log.window,
            window_bytes: log.window_bytes,
            retained_max: log.retained_max,
        }
    }
}

impl LogRelaySection {
    /// The settings of the log.
    #[must_use]
    pub fn log_config(&self) -> LogConfig {
        LogConfig::default()
            .checkpoint_every(self.checkpoint_every)
            .window(self.window)
            .window_bytes(self.window_bytes)
            .retained_max(self.retained_max)
    }
}

fn retention<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Retention, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "forever" {
        return Ok(Retention::Keep);
    }
    match duration::parse(&text) {
        Some(Duration::ZERO) => Ok(Retention::Delete),
        Some(time) => Ok(Retention::KeepFor(time)),
        None => Err(serde::de::Error::custom(format!(
            "`{text}` is no retention; write a duration such as `7d`, `forever`, or `0s` to delete at once"
        ))),
    }
}

/// An outbox that is complete: its section, and where its servers are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outbox {
    /// What the file says.
    pub section: OutboxSection,
    /// Its database.
    pub database_url: Secret,
    /// Where its log is read.
    pub log_url: Secret,
    /// Its NATS servers.
    pub nats_url: Secret,
    /// A credentials file of NATS.
    pub nats_credentials: Option<PathBuf>,
    /// The source of its messages (`ce-source`); `None` for the default.
    pub source: Option<String>,
}

impl Outbox {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.section.name
    }

    /// How its relay publishes.
    #[must_use]
    pub fn publisher_config(&self) -> PublisherConfig {
        let config = PublisherConfig::default();
        match &self.source {
            Some(source) => config.source(source),
            None => config,
        }
    }

    /// The names of its tables.
    ///
    /// # Errors
    ///
    /// [`NameError::Malformed`].
    pub fn table_names(&self) -> Result<TableNames, NameError> {
        let names = TableNames::new().with_prefix(&self.section.prefix)?;
        match &self.section.schema {
            Some(schema) => names.with_schema(schema),
            None => Ok(names),
        }
    }

    /// Two relays of the same tables in one program share their messages by chance, which would end on two streams.
    pub(super) fn check_beside(&self, other: &Self) -> Result<(), ConfigError> {
        if self.name() == other.name() {
            return Err(ConfigError::setting(
                format!("two outboxes are called `{}`", self.name()),
                "give each `[[outbox]]` a `name` of its own",
            ));
        }
        let tables = |outbox: &Self| {
            (
                outbox.database_url.clone(),
                outbox.section.schema.clone(),
                outbox.section.prefix.clone(),
            )
        };
        if tables(self) == tables(other) {
            return Err(ConfigError::setting(
                format!(
                    "the outboxes `{}` and `{}` have the same tables",
                    other.name(),
                    self.name()
                ),
                "give one of them another database, `schema` or `prefix`, or leave it out",
            ));
        }
        Ok(())
    }
}
