//! The errors that stop the demo, by exit status.
//!
//! Invariant: malformed input and an unbalanced ledger have different exit statuses, so a script can tell a mistake in its files from a broken
//! promise.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use crate::input::InputError;

type BoxError = Box<dyn Error + Send + Sync>;

/// Why a run or one of its programs stops.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input files are malformed; nothing was saved.
    Input(InputError),
    /// An operation failed.
    Doing { what: String, source: BoxError },
    /// A check failed.
    Wrong(String),
}

impl Failure {
    /// The exit status for this failure.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Input(_) => ExitCode::from(2),
            Self::Doing { .. } | Self::Wrong(_) => ExitCode::FAILURE,
        }
    }
}

/// Prints the failure with all its causes, and skips a level that only repeats its cause.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) => error.fmt(f),
            Self::Wrong(what) => f.write_str(what),
            Self::Doing { what, source } => {
                let mut text = what.clone();
                let mut cause: Option<&dyn Error> = Some(&**source);
                while let Some(error) = cause {
                    let message = error.to_string();
                    if !text.contains(&message) {
                        text = format!("{text}: {message}");
                    }
                    cause = error.source();
                }
                f.write_str(&text)
            }
        }
    }
}

impl Error for Failure {}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}

/// Adds to an error what was attempted.
pub(crate) trait Doing<T> {
    /// Turns the error into a [`Failure`] that starts with `cannot …`.
    fn or_cannot(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: Into<BoxError>> Doing<T> for Result<T, E> {
    fn or_cannot(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::Doing {
            what: format!("cannot {what}"),
            source: error.into(),
        })
    }
}
