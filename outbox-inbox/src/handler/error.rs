//! How a handler says that it failed, and whether trying again may help.
//!
//! Invariant: the cause is kept as a value, so that the runtime can tell a lost database connection from a failing handler. Not
//! here: attempts ([`crate::dedup::attempts`]) and delays ([`crate::runtime`]).

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

/// Why a handler failed. Everything it wrote through its transaction is rolled back.
///
/// `?` turns any error into a retryable one; [`HandlerError::fatal`] makes the message a dead letter at once; [`HandlerError::retry_after`] says *not yet*. So that
/// `?` works on every error type this type does not implement [`Error`] itself; [`HandlerError::source`] has the cause.
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

    /// Trying again cannot help: the message becomes a dead letter at once.
    pub fn fatal(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            kind: Kind::Fatal,
        }
    }

    /// Trying again may help; also what `?` makes of an error. Uses up an attempt, unless the cause is a database outage or a
    /// serialization conflict.
    pub fn retry(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            kind: Kind::Retry,
        }
    }

    /// Not yet: what the handler needs is not there, or another system asked to be left alone for a while (HTTP 429 and its `Retry-After`). The run is
    /// rolled back, and the handler runs with the message again after about `wait`: 10 ms to 1 h, other values are cut to that range.
    ///
    /// It uses no attempt, so it never makes the message a dead letter, however often the handler says it: a handler that shall give up returns another
    /// error. Meanwhile the message is in the way of others like one that failed: with the order `aggregate` its aggregate waits, with `strict` all do, and
    /// with strategy `sequence` the aggregate waits in all processes. A message that comes again after a crash, or because another process takes over, may
    /// come sooner.
    ///
    /// In a batch, a handler that is called once for each event keeps only that event waiting: the transaction is rolled back, and the others run one by one
    /// at once. A handler of `Vec<Event<T>>` cannot say which event it means: all of the call wait, and then each runs with a call of its own, one directly
    /// after the other. A handler that was asked to call less often keeps these calls apart itself.
    ///
    /// A dead letter that an operator retries waits too, and so do the retried dead letters behind it in its aggregate. New messages of the aggregate do not.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use outbox_inbox::HandlerError;
    ///
    /// let error = HandlerError::retry_after(Duration::from_secs(30)).because("the carrier answers 429");
    /// assert_eq!(error.waits(), Some(Duration::from_secs(30)));
    /// assert_eq!(error.to_string(), "the carrier answers 429");
    /// ```
    #[must_use]
    pub fn retry_after(wait: Duration) -> Self {
        let wait = wait.clamp(Self::RETRY_AFTER_MIN, Self::RETRY_AFTER_MAX);
        Self {
            source: format!("not yet, again after {wait:?}").into(),
            kind: Kind::After(wait),
        }
    }

    /// The same, with another cause, which the log names.
    #[must_use]
    pub fn because(self, source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            ..self
        }
    }

    /// Whether trying again is pointless.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self.kind, Kind::Fatal)
    }

    /// How long the message waits, if the handler said so by [`Self::retry_after`].
    #[must_use]
    pub fn waits(&self) -> Option<Duration> {
        match self.kind {
            Kind::After(wait) => Some(wait),
            Kind::Retry | Kind::Fatal => None,
        }
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
/// printed once, and quotations of the payload (serde) or of rows (databases) not at all.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let mut answers: Vec<_> = causes(error).filter_map(answer).collect();
    // Several levels of the chain hold the same database error.
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

/// An error and its causes.
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

/// An error that the database reported.
struct Answer {
    /// The text with values, in the language of the server.
    shown: String,
    /// The text without values.
    text: String,
}

/// The database error at this level of the chain.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn answer(error: &(dyn Error + 'static)) -> Option<Answer> {
    let answer = driver_error(error)?.as_database_error()?;
    let shown = answer.to_string();
    (!shown.is_empty()).then(|| Answer {
        shown,
        text: text_of_answer(answer),
    })
}

/// Without a driver there are no database errors.
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
    fn a_wait_is_cut_to_its_range() {
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
    fn what_is_wrong_with_json_is_said_without_its_values() {
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
    fn a_cause_that_quotes_json_is_described_without_the_quotation() {
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
