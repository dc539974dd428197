//! What can be known to fail before the first message is taken.
//!
//! Invariant: all problems are reported at once, each with what to type. Absent here: finding them ([`crate::router`],
//! [`crate::config`]).

use std::fmt;

use outbox_sea_orm::NameError;

use crate::handler::Registration;

/// Why an inbox cannot start: everything that is wrong, not just the first of it.
///
/// `Debug` shows the same text as `Display`: it is what a `main` that returns the error prints.
pub struct StartError {
    problems: Vec<Problem>,
}

impl StartError {
    pub(crate) fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Self { problems })
        }
    }

    /// The problems, at least one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [problem] => problem.fmt(f),
            problems => {
                write!(f, "{} problems", problems.len())?;
                problems
                    .iter()
                    .enumerate()
                    .try_for_each(|(index, problem)| write!(f, "\n{}. {problem}", index + 1))
            }
        }
    }
}

impl std::error::Error for StartError {}

/// One reason why an inbox cannot start.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// There is nothing to run.
    #[error(
        "no handlers are linked into this program; name the crates that hold them with `outbox_inbox::link_handlers!(my_handlers)`, \
         or list the handlers with `Router::new().handler::<my_handler>()`"
    )]
    NoHandlers,
    /// Two handlers of one consumer want the same event; one message has one inbox row, so only one of them could run.
    #[error(
        "event `{event_type}` version {event_version} has two handlers in consumer `{}`: {first} and {second}; give one of them \
         another `consumer`", first.consumer
    )]
    DuplicateHandlers {
        /// The event type.
        event_type: String,
        /// Its version.
        event_version: u32,
        /// The one that stands first by file and line.
        first: Registration,
        /// The other one.
        second: Registration,
    },
    /// A handler takes `State<T>`, and no `T` was provided.
    #[error("handler {handler} needs `State<{rust_type}>`; provide it with `Inbox::state`")]
    MissingState {
        /// The handler.
        handler: Registration,
        /// The type.
        rust_type: &'static str,
    },
    /// A consumer's name cannot be a name on the broker.
    #[error("consumer `{}` of handler {handler} is malformed; use 1 to 64 of the characters `A-Z a-z 0-9 _ -`", handler.consumer.escape_debug())]
    ConsumerName {
        /// The handler.
        handler: Registration,
    },
    /// A consumer that shall run here has no handlers.
    #[error(
        "consumer `{name}` has no handlers in this program; there are {}",
        list(available)
    )]
    UnknownConsumer {
        /// The name.
        name: String,
        /// Consumers that have handlers.
        available: Vec<&'static str>,
    },
    /// The database cannot hold tables of these names.
    #[error(transparent)]
    Names(#[from] NameError),
    /// A setting cannot work.
    #[error("inbox configuration: {0}")]
    Config(String),
}

fn list(names: &[&str]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}
