//! The next step: a command, advice, or both.
//!
//! Invariant: a [`Command`] runs as printed, without placeholders.

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::admin::words::quoted;

/// A command: literal words, then arguments that are quoted when printed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Command {
    literal: Cow<'static, str>,
    arguments: Vec<(Option<&'static str>, String)>,
}

impl Command {
    /// A command from literal words.
    pub fn new(literal: impl Into<Cow<'static, str>>) -> Self {
        Self {
            literal: literal.into(),
            arguments: Vec::new(),
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, value: impl ToString) -> Self {
        self.arguments.push((None, value.to_string()));
        self
    }

    /// Adds a flag, such as `--yes`.
    pub fn flag(mut self, name: &str) -> Self {
        self.literal = format!("{} {name}", self.literal).into();
        self
    }

    /// Adds an option, such as `--outbox shop`.
    pub fn option(mut self, name: &'static str, value: impl ToString) -> Self {
        self.arguments.push((Some(name), value.to_string()));
        self
    }

    /// The literal words before the arguments.
    pub fn literal(&self) -> &str {
        &self.literal
    }

    /// Arguments, with option names.
    pub fn arguments(&self) -> &[(Option<&'static str>, String)] {
        &self.arguments
    }

    /// Words after `outbox`; `None` for other programs.
    pub fn words_of_outbox(&self) -> Option<impl Iterator<Item = &str>> {
        let mut words = self.literal.split(' ');
        (words.next() == Some("outbox")).then_some(words)
    }
}

impl From<&'static str> for Command {
    fn from(literal: &'static str) -> Self {
        Self::new(literal)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.literal)?;
        for (option, value) in &self.arguments {
            if let Some(option) = option {
                write!(f, " {option}")?;
            }
            write!(f, " {}", quoted(value))?;
        }
        Ok(())
    }
}

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PartialEq<&str> for Command {
    fn eq(&self, line: &&str) -> bool {
        let text = self.to_string();
        text == *line
    }
}

impl PartialEq<String> for Command {
    fn eq(&self, line: &String) -> bool {
        let text = self.to_string();
        text == *line
    }
}

/// The next step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Next {
    /// A command for the current login.
    #[serde(rename = "next")]
    pub command: Option<Command>,
    /// Advice beyond commands.
    pub advice: Option<String>,
}

impl Next {
    /// Advice without a command.
    pub fn advice(words: impl Into<String>) -> Self {
        Self {
            command: None,
            advice: Some(words.into()),
        }
    }

    /// A command with advice.
    pub fn and_advice(command: impl Into<Command>, words: impl Into<String>) -> Self {
        Self {
            command: Some(command.into()),
            advice: Some(words.into()),
        }
    }

    /// The step to start a relay. The current login may lack a relay's rights.
    pub fn start_relay() -> Self {
        Self::and_advice(
            "outbox relay list",
            "start the service that runs the relay, or `outbox relay run` with a relay's login",
        )
    }

    /// Whether command and advice are absent.
    pub fn is_empty(&self) -> bool {
        self.command.is_none() && self.advice.is_none()
    }

    /// The command line, or empty.
    pub fn line(&self) -> String {
        self.command.as_ref().map(Command::to_string).unwrap_or_default()
    }
}

impl<T: Into<Command>> From<T> for Next {
    fn from(command: T) -> Self {
        Self {
            command: Some(command.into()),
            advice: None,
        }
    }
}
