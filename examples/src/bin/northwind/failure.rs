//! Why the demo stops, sorted by what its caller sees.
//!
//! Invariant: input that is wrong and a ledger that does not balance have exit statuses of their own, so a script can tell "your file"
//! from "our promise".

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use crate::input::InputError;

type BoxError = Box<dyn Error + Send + Sync>;

/// Why a run or one of its programs stops.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input files are wrong; nothing was saved.
    Input(InputError),
    /// Something did not work.
    Doing { what: String, source: BoxError },
    /// Something is not as it must be.
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

/// The failure with all its causes; levels that repeat their cause are printed once.
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

/// Says what was attempted when something failed.
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
