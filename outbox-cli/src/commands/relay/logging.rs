//! Logging to standard error, as text or JSON.
//!
//! Invariant: no filter enables a dependency's event that contains a secret, and no line exceeds
//! [`LINE_MAX`].

use std::borrow::Cow;
use std::io::{self, Write};

use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt, registry};

use crate::config::{ConfigError, Environment, LogFormat, LogSection};

const LINE_MAX: usize = 16 * 1024;

/// Message bytes that a shortened JSON line keeps. Escapes may double them.
const TEXT_MAX: usize = 1024;

const FILTER: &str = "info,sqlx=warn,async_nats=warn";

pub(in crate::commands) fn filter(environment: &Environment) -> Result<EnvFilter, ConfigError> {
    let text = environment.get("RUST_LOG").unwrap_or(FILTER);
    // async-nats logs every failed attempt as an error; `outbox::nats` logs an outage once.
    let quiet = if text.contains("async_nats") {
        ""
    } else {
        ",async_nats::connector=off"
    };
    EnvFilter::try_new(format!("{text}{quiet}")).map_err(|error| ConfigError::Setting {
        what: format!("RUST_LOG is not a filter ({error})"),
        remedy: "write a level such as `info`, or `info,sqlx=warn`".to_owned(),
    })
}

/// Starts logging, unless the embedding program already does. Threads are named after their
/// outbox.
pub(in crate::commands) fn start(log: &LogSection, filter: EnvFilter) {
    let lines = fmt::layer().with_thread_names(true);
    let lines = match log.format {
        LogFormat::Text => lines
            .with_ansi(false)
            .with_writer(Lines { cut: cut_text })
            .boxed(),
        LogFormat::Json => lines.json().with_writer(Lines { cut: cut_json }).boxed(),
    };
    // `try_init` fails only if a subscriber already exists, which then stays in use.
    let _ = registry()
        .with(filter)
        .with(filter_fn(|metadata| !holds_secret(metadata)))
        .with(lines)
        .try_init();
}

/// Spans of SeaORM drivers contain the database address with its password.
fn holds_secret(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("sea_orm::driver") && *metadata.level() == Level::TRACE
}

#[derive(Debug, Clone, Copy)]
struct Lines {
    cut: fn(&str) -> String,
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let shown = match line.len() <= LINE_MAX {
            true => Cow::Borrowed(line),
            false => Cow::Owned((self.cut)(&String::from_utf8_lossy(line)).into_bytes()),
        };
        io::stderr().lock().write_all(&shown)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn cut_text(line: &str) -> String {
    let mut line = shortened(line.trim_end(), LINE_MAX - 64).into_owned();
    line.push('\n');
    line
}

/// A valid JSON line with the beginning of an overlong line as message.
fn cut_json(line: &str) -> String {
    let message = shortened(line.trim_end(), TEXT_MAX);
    let fields = serde_json::json!({ "message": message });
    format!("{}\n", serde_json::json!({ "level": "WARN", "fields": fields }))
}

fn shortened(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(max);
    Cow::Owned(format!("{}… ({} bytes more)", &text[..end], text.len() - end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut() {
        let line = format!("WARN {}\n", "é".repeat(LINE_MAX));
        let cut = cut_text(&line);
        assert!(cut.len() <= LINE_MAX && cut.starts_with("WARN é") && cut.ends_with("bytes more)\n"));
    }

    #[test]
    fn a_long_line_of_json_stays_json() {
        let line = serde_json::json!({ "level": "INFO", "fields": { "user": "é".repeat(LINE_MAX) } });
        let cut = cut_json(&format!("{line}\n"));
        let read: serde_json::Value = serde_json::from_str(&cut).unwrap();
        assert!(cut.len() <= LINE_MAX && cut.ends_with('\n'));
        let message = read["fields"]["message"].as_str().unwrap();
        assert!(
            message.contains("éé") && message.ends_with("bytes more)"),
            "{message}"
        );
    }
}
