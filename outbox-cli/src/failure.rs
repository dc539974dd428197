//! Outcomes, errors and exit codes of commands.

use std::fmt;
use std::process::ExitCode;

use crate::admin::{Command, State};
use outbox::Failure;

use crate::{output, plain};

/// Outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Success without problems: exit code 0.
    Done,
    /// Work continues or will resume, but an operator should look: exit code 3.
    Degraded,
    /// Work stops until an operator acts: exit code 4.
    Stuck,
    /// Nothing matched the selection: exit code 5.
    NothingMatched,
}

impl Outcome {
    /// Exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Degraded => 3,
            Self::Stuck => 4,
            Self::NothingMatched => 5,
        }
    }
}

impl From<State> for Outcome {
    fn from(state: State) -> Self {
        match state {
            State::Healthy => Self::Done,
            State::Stuck => Self::Stuck,
            State::Degraded => Self::Degraded,
        }
    }
}

/// Failure of a command.
#[derive(Debug)]
pub struct CommandError {
    code: u8,
    failure: Failure,
    next: Option<Command>,
}

impl CommandError {
    /// Wrong command line, file or environment: exit code 2. A retry does not help.
    pub fn configuration(error: impl Into<Failure>) -> Self {
        Self {
            code: 2,
            failure: error.into(),
            next: None,
        }
    }

    /// Failure during work: exit code 1.
    pub fn failed(error: impl Into<Failure>) -> Self {
        Self {
            code: 1,
            failure: error.into(),
            next: None,
        }
    }

    /// Exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    pub(crate) fn with_next(mut self, next: Option<Command>) -> Self {
        self.next = next;
        self
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.failure)?;
        match &self.next {
            Some(command) => write!(f, "; next: {command}"),
            None => Ok(()),
        }
    }
}

/// Prints an error with its causes to standard error, and returns the exit code.
#[expect(clippy::print_stderr, reason = "the error ends the program")]
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
