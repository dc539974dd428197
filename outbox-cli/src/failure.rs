//! Why a command ended without doing what it was asked for, and the exit code that says so.

use std::error::Error;
use std::process::ExitCode;

use outbox::Failure;

/// Why a command did not do what it was asked for.
#[derive(Debug)]
#[non_exhaustive]
pub enum CommandError {
    /// The command line, the file or the environment is wrong: exit code 2. Starting again changes nothing.
    Configuration(Failure),
    /// It failed at its work: exit code 1.
    Failed(Failure),
}

impl CommandError {
    /// The exit code of a program that ends with this error.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Configuration(_) => 2,
            Self::Failed(_) => 1,
        }
    }

    pub(crate) fn configuration(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Configuration(Failure::from(error))
    }

    pub(crate) fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(Failure::from(error))
    }
}

/// Prints the error of a command to the standard error, with its causes, and returns the exit code of the program.
#[must_use]
#[expect(clippy::print_stderr, reason = "it is the last word of a program")]
pub fn exit_code(outcome: Result<(), CommandError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (CommandError::Configuration(failure) | CommandError::Failed(failure)) = &error;
            eprintln!("error: {failure:?}");
            ExitCode::from(error.code())
        }
    }
}
