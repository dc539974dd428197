//! The log: lines for people or for machines, on the standard error.

use tracing_subscriber::EnvFilter;

use crate::config::{ConfigError, Environment, LogFormat, LogSection};

/// The filter, from `RUST_LOG` or else from the file.
pub(in crate::commands) fn filter(
    log: &LogSection,
    environment: &Environment,
) -> Result<EnvFilter, ConfigError> {
    let (place, text) = match environment.get("RUST_LOG") {
        Some(text) => ("RUST_LOG", text),
        None => ("`log.level`", log.level.as_str()),
    };
    // async-nats logs each refused attempt as an error. An outage is logged once, by `outbox::nats`.
    let quiet = if text.contains("async_nats") {
        ""
    } else {
        ",async_nats::connector=off"
    };
    EnvFilter::try_new(format!("{text}{quiet}")).map_err(|error| ConfigError::Setting {
        what: format!("{place} is no filter ({error})"),
        remedy: "write a level such as `info`, or `info,sqlx=warn`".to_owned(),
    })
}

/// Starts the log, unless the program that these commands are mounted in has one already. The name of a thread is that of its outbox.
pub(in crate::commands) fn start(log: &LogSection, filter: EnvFilter) {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_thread_names(true);
    // An error means that there is a log already.
    let _ = match log.format {
        LogFormat::Text => subscriber.with_ansi(false).try_init(),
        LogFormat::Json => subscriber.json().try_init(),
    };
}
