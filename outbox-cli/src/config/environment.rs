//! Environment variables, which override the file and are the place for secrets.
//!
//! | variable | for one outbox, here `orders` | value |
//! |---|---|---|
//! | `DATABASE_URL` | `OUTBOX_ORDERS_DATABASE_URL` | database |
//! | `DATABASE_LOG_URL` | `OUTBOX_ORDERS_DATABASE_LOG_URL` | log, default `DATABASE_URL` |
//! | `NATS_URL` | `OUTBOX_ORDERS_NATS_URL` | NATS servers |
//! | `NATS_CREDS` | `OUTBOX_ORDERS_NATS_CREDS` | NATS credentials file |
//! | `CE_SOURCE` | `OUTBOX_ORDERS_CE_SOURCE` | message source (`ce-source`) |
//!
//! Invariant: a general variable never overrides a setting of one outbox among several; the
//! conflict is an error.

use std::collections::BTreeMap;

use super::ConfigError;
use super::outbox::{Outbox, OutboxSection, Secret};

/// Thread names start with the outbox name, and Linux truncates them to 15 bytes.
const NAME_BYTES_MAX: usize = 12;

/// The relay registry compares this many characters of a source.
const SOURCE_CHARS_MAX: usize = 255;

/// A copy of the environment variables, so that tests can pass other variables.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Environment").field(&self.0.len()).finish()
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let variables = variables.into_iter();
        Self(
            variables
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

impl Environment {
    /// Variables of this process. Non-Unicode names and values are ignored.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// An empty variable counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Completes an outbox section. `is_only`: whether the file has no other outbox.
    pub(super) fn complete(&self, section: OutboxSection, is_only: bool) -> Result<Outbox, ConfigError> {
        check_name(&section.name)?;
        let chosen = |variable: &'static str, key: &'static str, in_file: Option<&str>| {
            self.choose(&section.name, variable, (key, in_file), is_only)
        };
        let in_file = section.database_url.as_ref().map(Secret::expose);
        let database_url = chosen("DATABASE_URL", "database_url", in_file)?;
        let in_file = section.log.url.as_ref().map(Secret::expose);
        let log_url = chosen("DATABASE_LOG_URL", "log.url", in_file)?;
        let in_file = section.nats_url.as_ref().map(Secret::expose);
        let nats_url = chosen("NATS_URL", "nats_url", in_file)?;
        let credentials = section.nats_credentials.as_ref();
        let in_file = credentials.map(|path| path.to_string_lossy().into_owned());
        let nats_credentials = chosen("NATS_CREDS", "nats_credentials", in_file.as_deref())?;
        let source = chosen("CE_SOURCE", "source", section.source.as_deref())?;
        let needed = |value: Option<String>, variable: &str, example: &str| {
            value.map(Secret::new).ok_or_else(|| {
                ConfigError::setting(
                    format!("outbox `{}` has no address of its {example}", section.name),
                    format!("set {variable} or {}", of_outbox(&section.name, variable)),
                )
            })
        };
        let database_url = needed(
            database_url,
            "DATABASE_URL",
            "database (such as `postgres://user:password@host:5432/shop`)",
        )?;
        let outbox = Outbox {
            log_url: log_url.map_or_else(|| database_url.clone(), Secret::new),
            database_url,
            nats_url: needed(nats_url, "NATS_URL", "NATS servers (such as `nats://host:4222`)")?,
            nats_credentials: nats_credentials.map(Into::into),
            source,
            section,
        };
        check(&outbox)?;
        Ok(outbox)
    }

    fn choose(
        &self,
        outbox: &str,
        variable: &'static str,
        (key, in_file): (&'static str, Option<&str>),
        is_only: bool,
    ) -> Result<Option<String>, ConfigError> {
        let own = of_outbox(outbox, variable);
        if let Some(value) = self.get(&own) {
            return Ok(Some(value.to_owned()));
        }
        match (self.get(variable), in_file) {
            (Some(value), Some(in_file)) if !is_only && value != in_file => Err(ConfigError::setting(
                format!("{variable} is set, and the file gives outbox `{outbox}` a `{key}`"),
                format!("set {own} instead of {variable}, or leave `{key}` out"),
            )),
            (Some(value), _) => Ok(Some(value.to_owned())),
            (None, in_file) => Ok(in_file.map(str::to_owned)),
        }
    }
}

fn of_outbox(outbox: &str, variable: &str) -> String {
    format!("OUTBOX_{}_{variable}", outbox.to_ascii_uppercase())
}

fn check_name(name: &str) -> Result<(), ConfigError> {
    let is_plain = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if is_plain && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(ConfigError::setting(
        format!("`{}` cannot be the name of an outbox", name.escape_debug()),
        format!("use `[a-z][a-z0-9_]*`, at most {NAME_BYTES_MAX} bytes"),
    ))
}

fn check(outbox: &Outbox) -> Result<(), ConfigError> {
    let (name, section) = (outbox.name(), &outbox.section);
    let wrong = |error: &(dyn std::error::Error + 'static)| {
        ConfigError::setting(
            format!("outbox `{name}`: {}", ::outbox::core::describe(error)),
            "correct it in the file",
        )
    };
    outbox.table_names().map_err(|error| wrong(&error))?;
    let is_source = |source: &str| {
        let chars = source.chars().count();
        (1..=SOURCE_CHARS_MAX).contains(&chars) && !source.chars().any(char::is_control)
    };
    if outbox.source.as_deref().is_some_and(|source| !is_source(source)) {
        return Err(ConfigError::setting(
            format!("outbox `{name}`: the source is empty, too long, or contains control characters"),
            format!("use the name of the service, at most {SOURCE_CHARS_MAX} characters"),
        ));
    }
    let stream = section.stream.event_stream().map_err(|error| wrong(&error))?;
    stream.check().map_err(|error| wrong(&error))?;
    let scheme = outbox.database_url.expose().split(':').next().unwrap_or_default();
    if section.log.read && !matches!(scheme, "postgres" | "postgresql") {
        return Err(ConfigError::setting(
            format!("outbox `{name}` has `log.read`, and its database is not PostgreSQL"),
            "leave `log.read` out; the relay then polls the table",
        ));
    }
    if section.writers && !section.migrate {
        return Err(ConfigError::setting(
            format!("outbox `{name}` has `writers` without `migrate`"),
            "set `migrate = true` too, or create `outbox_record` with the SQL of docs/sql",
        ));
    }
    Ok(())
}
