//! How a command ends: what it has found, or why it could not do what it was asked for, and the exit code of each.

use std::fmt;
use std::process::ExitCode;

use outbox::Failure;
use outbox_admin::{Command, State};

use crate::{output, plain};

/// What a command has found. Each has an exit code of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It did what it was asked for, and nothing is wrong: exit code 0.
    Well,
    /// Something goes on, or will by itself, and somebody should look: exit code 3.
    Degraded,
    /// Something does not go on until somebody acts: exit code 4.
    Stuck,
    /// Nothing matched: exit code 5.
    NothingMatched,
}

impl Outcome {
    /// The exit code of a program that ends with this outcome.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::Degraded => 3,
            Self::Stuck => 4,
            Self::NothingMatched => 5,
        }
    }
}

impl From<State> for Outcome {
    fn from(state: State) -> Self {
        match state {
            State::Well => Self::Well,
            State::Stuck => Self::Stuck,
            // A state of a newer library is not known to be better.
            _ => Self::Degraded,
        }
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub struct CommandError {
    code: u8,
    failure: Failure,
    next: Option<Command>,
}

impl CommandError {
    /// The command line, the file or the environment is wrong: exit code 2. Starting again changes nothing.
    pub fn configuration(error: impl Into<Failure>) -> Self {
        Self {
            code: 2,
            failure: error.into(),
            next: None,
        }
    }

    /// The command failed at its work: exit code 1.
    pub fn failed(error: impl Into<Failure>) -> Self {
        Self {
            code: 1,
            failure: error.into(),
            next: None,
        }
    }

    /// The exit code of a program that ends with this error.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Names the command that helps.
    pub(crate) fn with_next(mut self, next: Option<Command>) -> Self {
        self.next = next;
        self
    }
}

/// In one line, with the command that helps.
impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.failure)?;
        match &self.next {
            Some(command) => write!(f, "; next: {command}"),
            None => Ok(()),
        }
    }
}

/// Prints the error of a command to the standard error, with its causes, and returns the exit code of the program.
#[must_use]
#[expect(clippy::print_stderr, reason = "it is the last word of a program")]
pub fn exit_code(outcome: Result<Outcome, CommandError>) -> ExitCode {
    match outcome {
        Ok(outcome) => ExitCode::from(outcome.code()),
        Err(CommandError { code, failure, next }) => {
            eprintln!("{}", plain::harmless(&format!("error: {failure:?}")));
            if let Some(next) = &next {
                eprint!("{}", output::next_line(next, ""));
            }
            ExitCode::from(code)
        }
    }
}
