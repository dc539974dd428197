//! Why an inbox cannot start.

use std::fmt;

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
#[error("{0}")]
pub struct Problem(String);

impl Problem {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn config(text: impl fmt::Display) -> Self {
        Self(format!("inbox configuration: {text}"))
    }
}
