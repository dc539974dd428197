//! The only error of these tasks: a sentence for the person at the terminal.
//!
//! Nobody matches on these errors, so there is no enum. Each message names the next step, and its cause is kept as a value and printed
//! once, by `Failure::report`.

use std::error::Error;
use std::fmt;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a task cannot go on, in the words of its user.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// The message followed by every cause, on one line.
    pub(crate) fn report(&self) -> String {
        let mut report = self.message.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            report.push_str(": ");
            report.push_str(&error.to_string());
            cause = error.source();
        }
        report
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}

/// Says what was being done when an operation failed.
pub(crate) trait Context<T> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Error + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure {
            message: message(),
            source: Some(Box::new(error)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_every_cause_once() {
        let inner: Result<()> = Err(Failure::new("no space left"));
        let middle = inner.context(|| "cannot write the log".to_owned());
        let outer = middle
            .context(|| "cannot start PostgreSQL".to_owned())
            .unwrap_err();
        assert_eq!(
            outer.report(),
            "cannot start PostgreSQL: cannot write the log: no space left"
        );
        assert_eq!(outer.to_string(), "cannot start PostgreSQL");
    }
}
