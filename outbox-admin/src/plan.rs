//! Preview of a change that is not about selected messages.

use serde::Serialize;

use crate::recheck::CauseNow;

/// What a change would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The command.
    pub change: &'static str,
    /// What it changes, in words.
    pub subject: String,
    /// Whether it would change anything.
    pub is_possible: bool,
    /// Effects, one sentence each; otherwise why nothing would change.
    pub effects: Vec<String>,
    /// Whether causes of failures still hold.
    pub causes: Vec<CauseNow>,
}

impl Plan {
    /// A change with effects.
    pub fn new(change: &'static str, subject: impl Into<String>, effects: Vec<String>) -> Self {
        Self {
            change,
            subject: subject.into(),
            is_possible: true,
            effects,
            causes: Vec::new(),
        }
    }

    /// A change that would change nothing.
    pub fn nothing(change: &'static str, subject: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            is_possible: false,
            ..Self::new(change, subject, vec![why.into()])
        }
    }
}
