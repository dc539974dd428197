//! What a change to dead letters would do.
//!
//! Invariant: a preview counts and changes nothing.

use outbox_inbox::{DeadLetterSelection, DeadLetters};
use sea_orm::DbErr;
use serde::Serialize;

use crate::letter_recheck::LetterCause;
use crate::letters::LetterChange;

/// What a change to dead letters would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LetterPreview {
    /// The change.
    pub change: LetterChange,
    /// Dead letters that it would change.
    pub dead_letters: u64,
    /// What it would do: one sentence each.
    pub effects: Vec<String>,
    /// For a retry: whether the causes still hold, if [`Self::recheck`] was told.
    pub causes: Vec<LetterCause>,
}

impl LetterPreview {
    /// Adds whether the causes still hold of which they have failed: what [`letter_causes`](crate::letter_causes) says.
    pub fn recheck(&mut self, causes: Vec<LetterCause>) {
        self.causes = causes;
    }
}

/// Says what a change would do. Reads all dead letters that are selected, without their payloads.
///
/// # Errors
///
/// The database's error.
pub async fn preview_letters(
    letters: &DeadLetters,
    change: LetterChange,
    selection: &DeadLetterSelection,
) -> Result<LetterPreview, DbErr> {
    let dead_letters = letters.count(&change.narrow(selection)).await?;
    Ok(preview_of_count(change, dead_letters))
}

/// Says what a change would do to so many dead letters.
#[must_use]
pub fn preview_of_count(change: LetterChange, dead_letters: u64) -> LetterPreview {
    LetterPreview {
        change,
        dead_letters,
        effects: if dead_letters == 0 {
            Vec::new()
        } else {
            change.effects()
        },
        causes: Vec::new(),
    }
}
