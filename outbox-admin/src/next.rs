//! The next step of a finding: one command that runs as printed, advice in words, or both.
//!
//! Invariant: a [`Command`] is one command line without placeholders. The printing program adds its own name and options: [`Command::called_as`].

use std::fmt;

use serde::Serialize;

/// Programs of the commands, each with the space behind its name.
const PROGRAMS: [&str; 6] = ["outbox ", "nats ", "chronyc ", "fuser ", "ls ", "systemctl "];

/// A command line as a shell reads it, with quoted arguments.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Command(String);

impl Command {
    /// The command line.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The command line in a program that mounts the commands: `shop outbox why order/4711`, where the command is `outbox why order/4711`. Commands of other programs
    /// stay as they are.
    ///
    /// ```
    /// let command = outbox_admin::Command::from("outbox why order/4711");
    /// assert_eq!(command.called_as("shop outbox"), "shop outbox why order/4711");
    /// ```
    #[must_use]
    pub fn called_as(&self, program: &str) -> String {
        match self.arguments() {
            Some(arguments) => format!("{program} {arguments}"),
            None => self.0.clone(),
        }
    }

    /// Everything behind the name of the program `outbox`; `None` if it is a command of another program.
    #[must_use]
    pub fn arguments(&self) -> Option<&str> {
        self.0.strip_prefix("outbox ")
    }
}

impl From<String> for Command {
    fn from(line: String) -> Self {
        debug_assert!(
            PROGRAMS.iter().any(|program| line.starts_with(program)),
            "not a command: {line}"
        );
        Self(line)
    }
}

impl From<&str> for Command {
    fn from(line: &str) -> Self {
        line.to_owned().into()
    }
}

impl From<&String> for Command {
    fn from(line: &String) -> Self {
        line.clone().into()
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq<&str> for Command {
    fn eq(&self, line: &&str) -> bool {
        self.0 == *line
    }
}

impl PartialEq<String> for Command {
    fn eq(&self, line: &String) -> bool {
        self.0 == *line
    }
}

/// What to do next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Next {
    /// The command, for the login that has asked.
    #[serde(rename = "next")]
    pub command: Option<Command>,
    /// What no command does, in words.
    pub advice: Option<String>,
}

impl Next {
    /// Advice in words, without a command.
    #[must_use]
    pub fn advice(words: impl Into<String>) -> Self {
        Self {
            command: None,
            advice: Some(words.into()),
        }
    }

    /// A command, and advice for the rest.
    #[must_use]
    pub fn and_advice(command: impl Into<Command>, words: impl Into<String>) -> Self {
        Self {
            command: Some(command.into()),
            advice: Some(words.into()),
        }
    }

    /// The next step if no relay is alive. The asking login may lack the rights of a relay.
    #[must_use]
    pub fn start_relay() -> Self {
        Self::and_advice(
            "outbox relay list",
            "start the service whose program runs the relay, or `outbox relay run` with the login of a relay",
        )
    }

    /// Whether there is neither a command nor advice.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.command.is_none() && self.advice.is_none()
    }

    /// The command line; empty without one.
    #[must_use]
    pub fn line(&self) -> &str {
        self.command.as_ref().map_or("", Command::as_str)
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
