//! Output of commands: data to standard output, messages to standard error.
//!
//! Invariant: JSON keys are the fields of `admin`. Output contains no raw control
//! characters, so ids and errors cannot control a terminal; JSON escapes them.

mod grid;

use std::fmt::Write as _;
use std::io::{ErrorKind, Write};

use crate::admin::{Columns, Command, Next};
use clap::ValueEnum;
use serde::Serialize;

pub(crate) use crate::plain::plain;

use crate::failure::CommandError;
use crate::invocation;
use crate::plain::harmless;

/// The form of the data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum Format {
    /// A table for people, or a text.
    #[default]
    Table,
    /// JSON: an array for a list, otherwise an object.
    Json,
}

pub(crate) trait Print: Serialize {
    fn text(&self) -> String;
}

pub(crate) fn list<T: Columns + Serialize>(format: Format, things: &[T]) -> Result<(), CommandError> {
    match format {
        Format::Table => write(&table(things)),
        Format::Json => write(&pretty(&things)?),
    }
}

pub(crate) fn many<T: Print>(format: Format, things: &[T]) -> Result<(), CommandError> {
    match format {
        Format::Table => write(&things.iter().map(Print::text).collect::<Vec<_>>().join("\n")),
        Format::Json => write(&pretty(&things)?),
    }
}

pub(crate) fn one<T: Print>(format: Format, thing: &T) -> Result<(), CommandError> {
    match format {
        Format::Table => write(&thing.text()),
        Format::Json => write(&pretty(thing)?),
    }
}

pub(crate) fn table<T: Columns>(things: &[T]) -> String {
    grid::table(T::COLUMNS, things)
}

fn pretty(thing: &impl Serialize) -> Result<String, CommandError> {
    let text = serde_json::to_string_pretty(thing).map_err(CommandError::failed)?;
    Ok(format!("{}\n", escaped(&text)))
}

/// Escapes the characters that JSON permits but a terminal interprets. These characters occur only
/// inside JSON strings.
fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '\u{7f}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(character));
            }
            _ => escaped.push(character),
        }
    }
    escaped
}

/// A closed pipe, as by `head`, is no failure.
pub(crate) fn write(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(CommandError::failed(error)),
        _ => Ok(()),
    }
}

pub(crate) fn say(words: &str) {
    let _ = writeln!(std::io::stderr(), "{}", harmless(words));
}

pub(crate) fn say_next(command: impl Into<Command>) {
    let _ = write!(std::io::stderr(), "{}", next_line(&command.into(), ""));
}

/// Command arguments may come from a row, so their control characters are escaped.
pub(crate) fn next_lines(next: &Next, margin: &str) -> String {
    let mut text = String::new();
    if let Some(command) = &next.command {
        text.push_str(&next_line(command, margin));
    }
    if let Some(advice) = &next.advice {
        text.push_str(&advice_line(advice, margin));
    }
    text
}

pub(crate) fn next_line(command: &Command, margin: &str) -> String {
    format!("{margin}next: {}\n", plain(&invocation::command(command)))
}

pub(crate) fn advice_line(advice: &str, margin: &str) -> String {
    format!("{margin}advice: {}\n", plain(advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes_terminal_characters_without_loss() {
        let text = "a\u{1b}[2J\u{9b}2J\u{7f}\u{202e}b\u{e9}";
        let json = pretty(&[text]).unwrap();
        assert!(
            json.chars()
                .all(|character| character == '\n' || !character.is_control()),
            "{json:?}"
        );
        assert!(!json.contains('\u{202e}') && json.contains('\u{e9}'), "{json:?}");
        let read: Vec<String> = serde_json::from_str(&json).unwrap();
        assert_eq!(read, [text]);
    }
}
