//! How bad something is, and why.

use std::fmt;

use serde::Serialize;

use crate::next::Next;

/// How bad it is. A later value is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// Nothing is wrong.
    Well,
    /// It goes on, or will by itself; somebody should look.
    Degraded,
    /// It does not go on until somebody acts.
    Stuck,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Reason {
    /// How bad it is.
    pub state: State,
    /// What is wrong, in a sentence.
    pub what: String,
    /// What to do next.
    #[serde(flatten)]
    pub next: Next,
}

impl Reason {
    /// What is wrong, how bad it is, and the command that shows more or mends it.
    #[must_use]
    pub fn new(state: State, what: impl Into<String>, next: impl Into<Next>) -> Self {
        Self {
            state,
            what: what.into(),
            next: next.into(),
        }
    }
}
