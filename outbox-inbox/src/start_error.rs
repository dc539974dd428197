//! Why an inbox cannot start.

use std::fmt;

use outbox_sea_orm::NameError;

/// All problems found. `Debug` prints the same text as `Display`.
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

    /// Returns the problems, at least one.
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Problem {
    kind: ProblemKind,
    text: String,
}

/// Part to change before an inbox can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The program: handlers, their options, state or upcasters.
    Handlers,
    /// A setting of the inbox, or the name of a consumer or table.
    Settings,
    /// The stream keeps messages longer than the inbox keeps its rows.
    Retention,
    /// The database: engine, settings, encoding, tables, or the rights of the login.
    Database,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }

    pub(crate) fn handlers(text: impl Into<String>) -> Self {
        Self::new(ProblemKind::Handlers, text)
    }

    pub(crate) fn database(text: impl Into<String>) -> Self {
        Self::new(ProblemKind::Database, text)
    }

    pub(crate) fn config(text: impl fmt::Display) -> Self {
        Self::new(ProblemKind::Settings, format!("inbox configuration: {text}"))
    }

    pub(crate) fn names(error: &NameError) -> Self {
        Self::new(ProblemKind::Settings, error.to_string())
    }

    /// Returns the part to change.
    #[must_use]
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }
}
