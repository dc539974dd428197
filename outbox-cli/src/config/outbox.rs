//! One outbox: its database, its stream and its relay.
//!
//! Invariant: the defaults come from [`EventStream`] and [`RelayConfig`]. The keys are documented in `assets/outbox.toml`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::outbox::core::{EventPolicy, PoisonPolicy, RelayConfig, Retention};
use ::outbox::log::LogConfig;
use ::outbox::nats::{EventStream, Provisioning, PublisherConfig, SubjectError};
use ::outbox::sea_orm::{NameError, TableNames};
use outbox_admin::input;
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
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutboxSection {
    pub name: String,
    pub database_url: Option<Secret>,
    pub schema: Option<String>,
    pub prefix: String,
    pub source: Option<String>,
    pub migrate: bool,
    pub writers: bool,
    pub allow_untested_engine: bool,
    pub nats_url: Option<Secret>,
    pub nats_credentials: Option<PathBuf>,
    pub nats_ca: Option<PathBuf>,
    pub events: Vec<EventSection>,
    pub stream: StreamSection,
    pub relay: RelaySection,
    pub log: LogRelaySection,
}

/// An entry of `events`: an event whose payload operators may see.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSection {
    #[serde(rename = "type")]
    pub event_type: String,
    pub version: u32,
    pub sensitive: Vec<String>,
}

impl Default for OutboxSection {
    fn default() -> Self {
        Self {
            name: "outbox".to_owned(),
            database_url: None,
            schema: None,
            prefix: String::new(),
            source: None,
            migrate: false,
            writers: false,
            allow_untested_engine: false,
            nats_url: None,
            nats_credentials: None,
            nats_ca: None,
            events: Vec::new(),
            stream: StreamSection::default(),
            relay: RelaySection::default(),
            log: LogRelaySection::default(),
        }
    }
}

/// A table `[outbox.stream]`: settings of [`EventStream`].
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSection {
    pub name: String,
    pub prefix: String,
    pub subjects: Vec<String>,
    pub provision: bool,
    #[serde(deserialize_with = "duration::optional")]
    pub duplicate_window: Option<Duration>,
    #[serde(deserialize_with = "duration::optional")]
    pub max_age: Option<Duration>,
    pub max_bytes: Option<u64>,
    pub replicas: Option<usize>,
    pub strong: bool,
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

/// A table `[outbox.relay]`: settings of [`RelayConfig`].
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelaySection {
    pub name: Option<String>,
    #[serde(deserialize_with = "duration::deserialize")]
    pub lease_ttl: Duration,
    pub buffer_bytes: usize,
    #[serde(deserialize_with = "duration::deserialize")]
    pub poll_max: Duration,
    #[serde(deserialize_with = "retention")]
    pub retention: Retention,
    #[serde(deserialize_with = "duration::deserialize")]
    pub dedup_key_retention: Duration,
    #[serde(deserialize_with = "duration::deserialize")]
    pub stuck_after: Duration,
    pub attempts_max: u32,
    pub on_poison: PoisonSection,
    pub allow_other_destination: bool,
}

/// What becomes of the aggregate of a dead letter.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoisonSection {
    #[default]
    Halt,
    Continue,
}

impl Default for RelaySection {
    fn default() -> Self {
        let relay = RelayConfig::default();
        Self {
            name: None,
            lease_ttl: relay.lease_ttl,
            buffer_bytes: relay.buffer_bytes,
            poll_max: relay.poll_max,
            retention: relay.retention,
            dedup_key_retention: relay.dedup_key_retention,
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
            .buffer_bytes(self.buffer_bytes)
            .poll_max(self.poll_max)
            .retention(self.retention)
            .dedup_key_retention(self.dedup_key_retention)
            .stuck_after(self.stuck_after)
            .allow_other_destination(self.allow_other_destination)
            .policy(policy)
    }
}

/// A table `[outbox.log]`: whether the relay reads the database's log, and settings of [`LogConfig`].
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogRelaySection {
    pub read: bool,
    pub name: String,
    pub url: Option<Secret>,
    pub window_bytes: usize,
    pub retained_max: u64,
}

impl Default for LogRelaySection {
    fn default() -> Self {
        let log = LogConfig::default();
        Self {
            read: false,
            name: "outbox".to_owned(),
            url: None,
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
            .window_bytes(self.window_bytes)
            .retained_max(self.retained_max)
    }
}

fn retention<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Retention, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "forever" {
        return Ok(Retention::Keep);
    }
    match input::duration(&text) {
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
