//! The configuration: a file, and the environment, which wins over it.
//!
//! Invariants: an unknown key is an error, never ignored. What holds a secret is a [`Secret`], which no text shows, and no error shows the text of a line.

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

/// An annotated file in which every setting has its default. `outbox print config` prints it.
pub const DEFAULT_FILE: &str = include_str!("../../assets/outbox.toml");

/// The whole configuration, checked as far as that is possible without a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Whether a change must be confirmed by the number of changed things.
    pub production: bool,
    /// Probes and metrics.
    pub http: HttpSection,
    /// What is logged, and how.
    pub log: LogSection,
    /// The outboxes, at least one.
    pub outboxes: Vec<Outbox>,
}

/// Why there is no configuration. No text shows a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {} cannot be read; `outbox print config` prints one to start from", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The file is no TOML, or has a key or a value that it should not have.
    #[error("{place}: {reason}")]
    Malformed {
        /// File and line.
        place: String,
        /// What is wrong, without the line itself, which may hold a secret.
        reason: String,
    },
    /// A setting is missing, or contradicts another one.
    #[error("{what}; {remedy}")]
    Setting {
        /// What is wrong.
        what: String,
        /// What to do about it.
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
    /// Reads the file, if one is given, and the environment.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first mistake.
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

    /// Completes a file by the environment. A file without an outbox has one, with all defaults.
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
