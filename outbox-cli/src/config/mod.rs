//! Configuration from a file and the environment. The environment takes precedence.
//!
//! Invariant: unknown keys are errors. Secrets are [`Secret`] values and never appear in errors
//! or debug output.

pub(crate) mod duration;
mod environment;
mod file;
mod outbox;

use std::path::{Path, PathBuf};

pub use self::outbox::{
    EventSection, LogRelaySection, Outbox, OutboxSection, PoisonSection, RelaySection, Secret, StreamSection,
};
pub use environment::Environment;
pub use file::{File, HttpSection, LogFormat, LogSection};

/// Annotated configuration file with all defaults, printed by `outbox print config`.
pub const DEFAULT_FILE: &str = include_str!("../../assets/outbox.toml");

/// Validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Whether changes need confirmation by count.
    pub production: bool,
    /// Settings of probes and metrics.
    pub http: HttpSection,
    /// Settings of logging.
    pub log: LogSection,
    /// Configured outboxes, at least one.
    pub outboxes: Vec<Outbox>,
}

/// Configuration error, without secrets.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {} cannot be read; `outbox print config` prints one to start from", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a wrong key or value.
    #[error("{place}: {reason}")]
    Malformed {
        /// File and line number.
        place: String,
        /// Reason, without the text of the file's line.
        reason: String,
    },
    /// A setting is missing or contradictory.
    #[error("{what}; {remedy}")]
    Setting {
        /// Problem.
        what: String,
        /// Remedy.
        remedy: String,
    },
}

impl ConfigError {
    pub(crate) fn setting(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Setting {
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

impl Config {
    /// Loads the optional file and the environment.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first problem.
    pub fn load(path: Option<&Path>, environment: &Environment) -> Result<Self, ConfigError> {
        let Some(path) = path else {
            return Self::new(File::default(), environment);
        };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::new(File::parse(&path.display().to_string(), &text)?, environment)
    }

    /// Completes a file from the environment. A file without outboxes gets an outbox with all
    /// defaults.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Setting`].
    pub fn new(file: File, environment: &Environment) -> Result<Self, ConfigError> {
        let mut sections = file.outbox;
        if sections.is_empty() {
            sections.push(OutboxSection::default());
        }
        let is_only = sections.len() == 1;
        let mut outboxes: Vec<Outbox> = Vec::new();
        for section in sections {
            let outbox = environment.complete(section, is_only)?;
            for other in &outboxes {
                outbox.check_beside(other)?;
            }
            outboxes.push(outbox);
        }
        Ok(Self {
            production: file.production,
            http: file.http,
            log: file.log,
            outboxes,
        })
    }
}
