//! Configuration of one outbox: database, stream and relay.
//!
//! Invariant: defaults come from [`EventStream`] and [`RelayConfig`]. Keys are documented in
//! `assets/outbox.toml`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::admin::input;
use ::outbox::core::{EventPolicy, PoisonPolicy, RelayConfig, Retention};
use ::outbox::log::LogConfig;
use ::outbox::nats::{EventStream, Provisioning, PublisherConfig, SubjectError};
use ::outbox::sea_orm::{NameError, TableNames};
use serde::Deserialize;

use super::{ConfigError, duration};

/// A text excluded from debug output.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret text. Do not print it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// Table `[[outbox]]`.
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

/// Entry of `events`: an event with a payload visible to operators.
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

/// Table `[outbox.stream]`, see [`EventStream`].
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

/// Table `[outbox.relay]`, see [`RelayConfig`].
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

/// Effect of a dead letter on its aggregate.
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
    /// Relay settings.
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

/// Table `[outbox.log]`, see [`LogConfig`].
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
    /// Log settings.
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
            "`{text}` is not a retention; write a duration such as `7d`, `forever`, or `0s` to delete at once"
        ))),
    }
}

/// An outbox with complete settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// The outbox's section of the file.
    pub section: OutboxSection,
    /// Database address.
    pub database_url: Secret,
    /// Address of the database log.
    pub log_url: Secret,
    /// NATS servers.
    pub nats_url: Secret,
    /// NATS credentials file.
    pub nats_credentials: Option<PathBuf>,
    /// Message source (`ce-source`); `None`: the library's default.
    pub source: Option<String>,
}

impl Outbox {
    /// Name.
    pub fn name(&self) -> &str {
        &self.section.name
    }

    /// Publisher settings.
    pub fn publisher_config(&self) -> PublisherConfig {
        let config = PublisherConfig::default();
        match &self.source {
            Some(source) => config.source(source),
            None => config,
        }
    }

    /// Table names.
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

    /// Two relays on the same tables would split the messages at random between two streams.
    pub(super) fn check_beside(&self, other: &Self) -> Result<(), ConfigError> {
        if self.name() == other.name() {
            return Err(ConfigError::setting(
                format!("two outboxes have the name `{}`", self.name()),
                "give each `[[outbox]]` its own `name`",
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
