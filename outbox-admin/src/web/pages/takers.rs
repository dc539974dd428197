//! Which consumers are handed the messages of a preview once they are published, and which of them remember the events.
//!
//! Invariant: a preview stands without it. What could not be looked at is said in the words of the command line, and the change can be made.

use crate::web::App;
use crate::{EffectRow, Handed, Preview, unforeseen};

/// What was found of the consumers.
#[derive(Default)]
pub(super) struct Looked {
    handed: Handed,
    /// The rows of their inboxes.
    rows: Vec<EffectRow>,
    /// What of the inboxes could not be looked at.
    unseen: Vec<String>,
}

/// Asks which consumers are handed the first messages of a preview, and what their inboxes remember of the events. The error says what could not be looked at.
pub(super) async fn look(app: &App, preview: &Preview) -> Result<Looked, String> {
    let mut looked = Looked::default();
    // A change that hands nothing to consumers names no messages.
    if preview.first.is_empty() {
        return Ok(looked);
    }
    let takers = app.ask_stream(app.stream.takers()).await?;
    let handed = app.ask(app.outbox.handed(&preview.first, takers)).await;
    looked.handed = handed.map_err(|problem| problem.text().to_owned())?;
    // The inboxes of those that are handed nothing do not matter.
    if looked.handed.takers().is_empty() {
        return Ok(looked);
    }
    match app.ask_stream(app.stream.inboxes(&preview.sample)).await {
        Ok(view) => {
            looked.rows = view.rows;
            looked.unseen = view.unseen;
        }
        Err(error) => looked.unseen.push(format!("inboxes: {error}")),
    }
    Ok(looked)
}

/// Adds to a preview what was found.
pub(super) fn add(preview: &mut Preview, looked: Result<Looked, String>) {
    match looked {
        Ok(Looked { handed, rows, unseen }) => {
            preview.foresee(&handed, unseen.is_empty().then_some(rows.as_slice()));
            preview.effects.extend(unseen.iter().map(unforeseen));
        }
        Err(unseen) => preview.effects.push(unforeseen(unseen)),
    }
}
