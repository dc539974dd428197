//! Severity and reason of a problem.

use std::fmt;

use serde::Serialize;

use crate::admin::next::Next;

/// Severity. Later values are worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No problem.
    Healthy,
    /// Work continues or will resume, but an operator should check the cause.
    Degraded,
    /// Work stops until an operator acts.
    Stuck,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Severity.
    pub state: State,
    /// Description, one sentence.
    pub what: String,
    /// Next step.
    #[serde(flatten)]
    pub next: Next,
}

impl Reason {
    /// A problem.
    pub fn new(state: State, what: impl Into<String>, next: impl Into<Next>) -> Self {
        Self {
            state,
            what: what.into(),
            next: next.into(),
        }
    }
}
