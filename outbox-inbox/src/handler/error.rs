//! How a handler says that it failed, and whether trying again may help.
//!
//! Invariant: the cause is kept as a value, so that the runtime can tell a lost database connection from a failing handler. Absent
//! here: attempts and delays.

use std::error::Error;
use std::fmt;

type BoxError = Box<dyn Error + Send + Sync>;

/// Why a handler failed. Everything it wrote through its transaction is rolled back.
///
/// `?` turns any error into a retryable one; [`HandlerError::fatal`] gives up at once. So that `?` works on every error type this
/// type does not implement [`Error`] itself; [`HandlerError::source`] has the cause.
///
/// ```
/// use outbox_inbox::HandlerError;
///
/// fn parse(text: &str) -> Result<u32, HandlerError> {
///     if text.is_empty() {
///         // Will be empty next time as well: straight to the dead letters.
///         return Err(HandlerError::fatal("quantity is empty"));
///     }
///     Ok(text.parse()?)
/// }
/// assert!(parse("").unwrap_err().is_fatal());
/// assert!(!parse("x").unwrap_err().is_fatal());
/// ```
#[derive(Debug)]
pub struct HandlerError {
    source: BoxError,
    fatal: bool,
}

impl HandlerError {
    /// Trying again cannot help: the message becomes a dead letter at once.
    pub fn fatal(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            fatal: true,
        }
    }

    /// Trying again may help; also what `?` makes of an error. Uses up an attempt, unless the cause is a database outage or a
    /// serialization conflict.
    pub fn retry(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            fatal: false,
        }
    }

    /// Whether trying again is pointless.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// The cause.
    #[must_use]
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }
}

/// The cause's own message, without its causes.
impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(source: E) -> Self {
        Self::retry(source)
    }
}

/// An error with all its causes in one line, for logs and for `last_error`. Levels that repeat their cause (SeaORM's do) are
/// printed once.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("card was declined")]
    struct Declined {
        source: std::io::Error,
    }

    #[test]
    fn question_mark_is_retryable_and_keeps_the_cause() {
        let handler = || -> Result<(), HandlerError> {
            Err(Declined {
                source: std::io::Error::other("no funds"),
            })?;
            Ok(())
        };
        let error = handler().unwrap_err();
        assert!(!error.is_fatal());
        assert_eq!(error.to_string(), "card was declined");
        assert!(error.source().downcast_ref::<Declined>().is_some());
        assert_eq!(describe(error.source()), "card was declined: no funds");
    }

    #[test]
    fn text_can_be_fatal() {
        let error = HandlerError::fatal("unknown product");
        assert!(error.is_fatal());
        assert_eq!(error.to_string(), "unknown product");
    }
}
