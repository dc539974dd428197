//! Errors of a handler, and whether a retry may help.
//!
//! Invariant: an error keeps its cause as a value, so that the runtime can detect a lost
//! connection.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use outbox_core::payload::json_reason;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use super::database_error::text_of_answer;
use super::redaction::without_values;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use crate::dedup::constraint::driver_error;

type BoxError = Box<dyn Error + Send + Sync>;

/// The error of a handler. Every write through the handler's transaction is rolled back.
///
/// `?` makes any error retryable. [`HandlerError::fatal`] makes the message a dead letter
/// immediately. [`HandlerError::retry_after`] delays the message. The type does not implement
/// [`Error`], because an implementation would rule out `?`.
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
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Retry,
    Fatal,
    After(Duration),
}

impl HandlerError {
    /// Shortest wait of [`Self::retry_after`].
    pub const RETRY_AFTER_MIN: Duration = Duration::from_millis(10);
    /// Longest wait of [`Self::retry_after`].
    pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

    /// An error that a retry cannot fix: the message becomes a dead letter.
    pub fn fatal(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            kind: Kind::Fatal,
        }
    }

    /// An error that a retry may fix; `?` creates the same error. The error uses up an attempt,
    /// unless its cause is a database outage or a serialization conflict.
    pub fn retry(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            kind: Kind::Retry,
        }
    }

    /// An error for *not yet*: a precondition is missing, or another system requested a pause (HTTP
    /// 429). The run is rolled back. The handler runs again after about `wait`, clamped to 10 ms to
    /// 1 h, or sooner after a crash or a takeover by another process.
    ///
    /// No attempt is used. Until the next run, the message blocks other messages like a failed
    /// message: with order `aggregate` messages of its aggregate, with strategy `sequence` messages
    /// of its aggregate in all processes, with order `strict` all messages.
    ///
    /// In a batch, only this event waits. With `Vec<Event<T>>`, all events of the call wait, and
    /// then each event runs in its own call.
    ///
    /// A retried dead letter waits for the same time. It blocks later dead letters of its
    /// aggregate, but no new messages.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use outbox_inbox::HandlerError;
    ///
    /// let wait = Duration::from_secs(30);
    /// let error = HandlerError::retry_after(wait).because("the carrier answers 429");
    /// assert_eq!(error.waits(), Some(wait));
    /// assert_eq!(error.to_string(), "the carrier answers 429");
    /// ```
    #[must_use]
    pub fn retry_after(wait: Duration) -> Self {
        let wait = wait.clamp(Self::RETRY_AFTER_MIN, Self::RETRY_AFTER_MAX);
        Self {
            source: format!("not yet; retry after {wait:?}").into(),
            kind: Kind::After(wait),
        }
    }

    /// Replaces the cause, which is logged.
    #[must_use]
    pub fn because(self, source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            ..self
        }
    }

    /// Whether the error is fatal: a retry cannot help.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self.kind, Kind::Fatal)
    }

    /// The wait set by [`Self::retry_after`].
    #[must_use]
    pub fn waits(&self) -> Option<Duration> {
        match self.kind {
            Kind::After(wait) => Some(wait),
            Kind::Retry | Kind::Fatal => None,
        }
    }

    /// The cause of the error.
    #[must_use]
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }
}

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

/// Formats an error without values quoted from payloads (serde) or rows (databases).
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let mut answers: Vec<_> = causes(error).filter_map(answer).collect();
    answers.dedup_by(|one, other| one.shown == other.shown);
    let mut text = String::new();
    for error in causes(error) {
        let message = of_one(error, &answers);
        if text.is_empty() {
            text = message;
        } else if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
    }
    text
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'e (dyn Error + 'static) = *error;
        error.source()
    })
}

fn of_one(error: &(dyn Error + 'static), answers: &[Answer]) -> String {
    if let Some(error) = error.downcast_ref::<serde_json::Error>() {
        return json_reason(error);
    }
    let text = answers.iter().fold(error.to_string(), |text, answer| {
        text.replace(&answer.shown, &answer.text)
    });
    without_values(text)
}

struct Answer {
    shown: String,
    text: String,
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn answer(error: &(dyn Error + 'static)) -> Option<Answer> {
    let answer = driver_error(error)?.as_database_error()?;
    let shown = answer.to_string();
    (!shown.is_empty()).then(|| Answer {
        shown,
        text: text_of_answer(answer),
    })
}

#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
fn answer(_: &(dyn Error + 'static)) -> Option<Answer> {
    None
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

    #[test]
    fn requested_wait_is_clamped() {
        for (asked, waits) in [
            (Duration::ZERO, HandlerError::RETRY_AFTER_MIN),
            (Duration::from_secs(60), Duration::from_secs(60)),
            (Duration::MAX, HandlerError::RETRY_AFTER_MAX),
        ] {
            let error = HandlerError::retry_after(asked);
            assert_eq!((error.waits(), error.is_fatal()), (Some(waits), false));
        }
        assert_eq!(HandlerError::retry("out of stock").waits(), None);
    }

    fn reason<T: serde::de::DeserializeOwned + fmt::Debug>(json: &str) -> String {
        json_reason(&serde_json::from_str::<T>(json).unwrap_err())
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Order {
        number: u8,
        kind: Kind,
    }

    #[derive(Debug, serde::Deserialize)]
    enum Kind {
        Small,
        Large,
    }

    #[derive(Debug, serde::Deserialize)]
    enum Never {}

    #[derive(Debug, serde::Deserialize)]
    #[serde(try_from = "String")]
    struct Picky;

    impl TryFrom<String> for Picky {
        type Error = String;

        fn try_from(text: String) -> Result<Self, String> {
            Err(format!("invalid type: {text}"))
        }
    }

    #[test]
    fn json_errors_are_described_without_values() {
        for (found, expected) in [
            (
                reason::<Order>(r#"{"number": "CANARY"}"#),
                "invalid type: string, expected u8, at line 1 column 19",
            ),
            (
                reason::<Order>(r#"{"number": "CANARY, expected CANARY"}"#),
                "invalid type: string, expected u8, at line 1 column 36",
            ),
            (
                reason::<Order>(r#"{"number": 4711}"#),
                "invalid value: integer, expected u8, at line 1 column 15",
            ),
            (
                reason::<Order>(r#"{"number": 4711.5}"#),
                "invalid type: floating point, expected u8, at line 1 column 17",
            ),
            (
                reason::<Order>(r#"{"number": true}"#),
                "invalid type: boolean, expected u8, at line 1 column 15",
            ),
            (
                reason::<Order>(r#"{"kind": "CANARY"}"#),
                "unknown variant, expected `Small` or `Large`, at line 1 column 17",
            ),
            (
                reason::<Order>(r#"{"CANARY": 1}"#),
                "unknown field, expected `number` or `kind`, at line 1 column 9",
            ),
            (
                reason::<Order>("{}"),
                "missing field `number`, at line 1 column 2",
            ),
            (
                reason::<Never>(r#""CANARY, expected CANARY""#),
                "unknown variant, at line 1 column 25",
            ),
            (reason::<Picky>(r#""CANARY""#), "invalid type"),
            (reason::<Picky>(r#""CANARY, expected CANARY""#), "invalid type"),
            (reason::<Order>("[CANARY"), "expected value at line 1 column 2"),
            (
                reason::<Order>(r#"{"number": 1"#),
                "EOF while parsing an object at line 1 column 12",
            ),
        ] {
            assert_eq!(found, expected);
            assert!(!found.contains("CANARY") && !found.contains("4711"), "{found}");
        }
    }

    #[test]
    fn cause_with_quoted_json_is_described_without_quote() {
        #[derive(Debug, thiserror::Error)]
        #[error("address cannot be read")]
        struct Unread(#[source] serde_json::Error);
        let error = Unread(serde_json::from_str::<u8>(r#""CANARY""#).unwrap_err());
        assert_eq!(
            describe(&error),
            "address cannot be read: invalid type: string, expected u8, at line 1 column 8"
        );
    }
}
