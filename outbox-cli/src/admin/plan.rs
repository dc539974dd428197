//! Preview of a change that is not about selected messages.

use serde::Serialize;

use crate::admin::recheck::CauseNow;

/// Preview of a change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The command.
    pub change: &'static str,
    /// The changed scope in words.
    pub subject: String,
    /// Whether anything changes.
    pub is_possible: bool,
    /// Number of selected dead letters, as `--confirm` needs it.
    pub count: Option<u64>,
    /// Effects, or why nothing changes.
    pub effects: Vec<String>,
    /// Causes of failures.
    pub causes: Vec<CauseNow>,
}

impl Plan {
    /// A change with effects.
    pub fn new(change: &'static str, subject: impl Into<String>, effects: Vec<String>) -> Self {
        Self {
            change,
            subject: subject.into(),
            is_possible: true,
            count: None,
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
