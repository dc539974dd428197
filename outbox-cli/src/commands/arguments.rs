//! Arguments shared by several commands.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use crate::admin::{MessageOrAggregate, input};
use clap::Args;
use outbox::core::{Aggregate, MessageId, Selection};
use time::OffsetDateTime;

use crate::config::{Config, Environment, Outbox};
use crate::failure::CommandError;
use crate::invocation;
use crate::output::Format;

/// Last line of every help text.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 done or healthy, 1 failed, 2 wrong command line, file or environment, 3 degraded, 4 stuck, 5 nothing matched";

/// Common arguments.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct PlaceArguments {
    /// The file.
    #[command(flatten)]
    pub file: FileArguments,
    /// Timeout of each answer of the database or NATS.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_timeout)]
    pub timeout: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Which file, and which of its outboxes.
#[derive(Debug, Clone, Default, Args)]
pub struct FileArguments {
    /// Configuration file. Without a file, all settings have their defaults.
    #[arg(long, value_name = "FILE", env = "OUTBOX_CONFIG")]
    pub config: Option<PathBuf>,
    /// Name of the outbox in the file. Required if the file has several.
    #[arg(long, value_name = "NAME")]
    pub outbox: Option<String>,
}

impl FileArguments {
    /// The file with the named outbox, or with all outboxes.
    pub(super) fn load(&self) -> Result<Config, CommandError> {
        invocation::remember(self.config.as_deref(), self.outbox.as_deref());
        let config = Config::load(self.config.as_deref(), &Environment::of_process());
        let mut config = config.map_err(CommandError::configuration)?;
        if let Some(name) = &self.outbox {
            let names: Vec<String> = config
                .outboxes
                .iter()
                .map(|outbox| outbox.name().to_owned())
                .collect();
            config.outboxes.retain(|outbox| outbox.name() == name);
            if config.outboxes.is_empty() {
                return Err(CommandError::configuration(format!(
                    "there is no outbox `{}`; the file has `{}`",
                    name.escape_debug(),
                    names.join("`, `")
                )));
            }
        }
        Ok(config)
    }

    /// The file, and its named or only outbox.
    pub(super) fn load_one(&self) -> Result<(Config, Outbox), CommandError> {
        let mut config = self.load()?;
        match (config.outboxes.pop(), config.outboxes.is_empty()) {
            (Some(outbox), true) => Ok((config, outbox)),
            _ => Err(CommandError::configuration(
                "the file has several outboxes; choose one with `--outbox NAME`",
            )),
        }
    }
}

/// Which messages.
#[derive(Debug, Clone, Default, Args)]
pub struct SelectionArguments {
    /// Only this message.
    #[arg(value_name = "MESSAGE", value_parser = input::message_id)]
    pub id: Option<MessageId>,
    /// Only messages of this aggregate, such as `order/4711`.
    #[arg(long, value_name = "TYPE/ID", value_parser = input::aggregate)]
    pub aggregate: Option<Aggregate>,
    /// Only messages of aggregates of this type.
    #[arg(long, value_name = "TYPE", conflicts_with = "aggregate")]
    pub aggregate_type: Option<String>,
    /// Only messages of this event type, such as `order.placed`.
    #[arg(long = "type", value_name = "EVENT")]
    pub event_type: Option<String>,
    /// Only messages recorded since this time: `2h` ago, a date, or a time by RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = input::time)]
    pub since: Option<OffsetDateTime>,
    /// Only messages recorded before this time.
    #[arg(long, value_name = "TIME", value_parser = input::time)]
    pub until: Option<OffsetDateTime>,
}

impl SelectionArguments {
    pub(crate) fn is_empty(&self) -> bool {
        self.id.is_none()
            && self.aggregate.is_none()
            && self.aggregate_type.is_none()
            && self.event_type.is_none()
            && self.since.is_none()
            && self.until.is_none()
    }

    pub(crate) fn selection(&self) -> Selection {
        let mut selection = self.id.map_or_else(Selection::all, Selection::id);
        if let Some(aggregate) = &self.aggregate {
            selection = selection.aggregate(aggregate);
        }
        if let Some(aggregate_type) = &self.aggregate_type {
            selection = selection.aggregate_type(aggregate_type);
        }
        if let Some(event_type) = &self.event_type {
            selection = selection.event_type(event_type);
        }
        if let Some(since) = self.since {
            selection = selection.recorded_from(since);
        }
        if let Some(until) = self.until {
            selection = selection.recorded_until(until);
        }
        selection
    }
}

/// List length.
#[derive(Debug, Clone, Copy, Args)]
pub struct LimitArguments {
    /// Maximum rows.
    #[arg(long, value_name = "N", default_value = "50")]
    pub limit: NonZeroU32,
}

pub(crate) fn parse_subject(text: &str) -> Result<MessageOrAggregate, String> {
    match input::message_id(text) {
        Ok(id) => Ok(MessageOrAggregate::Message(id)),
        Err(_) if text.contains('/') => Ok(MessageOrAggregate::Aggregate(input::aggregate(text)?)),
        Err(_) => Err("neither a message id (a UUID) nor an aggregate (`order/4711`)".to_owned()),
    }
}

pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    input::duration(text)
        .ok_or_else(|| "invalid duration; write a whole number and a unit, such as `30s` or `2h`".to_owned())
}

/// A timeout of zero would always fail.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("too short; write at least `1ms`".to_owned()),
        timeout => Ok(timeout),
    }
}

pub(crate) fn parse_between_looks(text: &str) -> Result<Duration, String> {
    let between = parse_duration(text)?;
    if (Duration::from_secs(1)..=Duration::from_hours(1)).contains(&between) {
        return Ok(between);
    }
    Err("too short or too long; write a time from `1s` to `1h`".to_owned())
}

/// Rejects a change without a selection, unless `--all` is given.
pub(crate) fn refuse_everything(selection: &SelectionArguments, all: bool) -> Result<(), CommandError> {
    if selection.is_empty() && !all {
        return Err(CommandError::configuration(
            "nothing is selected; name a message or a filter, or write `--all`",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_timeout_is_rejected() {
        assert_eq!(parse_timeout("1ms"), Ok(Duration::from_millis(1)));
        let error = parse_timeout("0s").unwrap_err();
        assert!(error.contains("at least `1ms`"), "{error}");
    }

    #[test]
    fn forecast_interval_is_one_second_to_one_hour() {
        for (text, seconds) in [("1s", 1), ("5s", 5), ("60m", 3600), ("1h", 3600)] {
            assert_eq!(parse_between_looks(text), Ok(Duration::from_secs(seconds)));
        }
        for wrong in ["0s", "999ms", "3601s", "99999999d"] {
            let error = parse_between_looks(wrong).unwrap_err();
            assert!(error.contains("from `1s` to `1h`"), "{wrong}: {error}");
        }
        parse_between_looks("5").unwrap_err();
    }

    #[test]
    fn a_subject_is_a_message_or_an_aggregate() {
        let id = "019ab000-0000-7000-8000-000000000001";
        assert_eq!(
            parse_subject(id).unwrap(),
            MessageOrAggregate::Message(input::message_id(id).unwrap())
        );
        let aggregate = MessageOrAggregate::Aggregate(Aggregate::new("order", "47/11"));
        assert_eq!(parse_subject("order/47/11").unwrap(), aggregate);
        for text in ["", "4711", "/4711", "order/"] {
            parse_subject(text).unwrap_err();
        }
    }
}
