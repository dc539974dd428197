//! Selection, preview and change of dead letters.
//!
//! Dead letters of groups and limited selections are read first and changed by key.

use outbox::inbox::{DeadLetterSelection, DeadLetters};
use outbox_admin::{LetterChange, LetterPreview, LetterRow};
use uuid::Uuid;

use super::super::outcome::{Changed, PREVIEWED};
use super::super::place::Place;
use super::super::text;
use super::{ChangeLettersCommand, letters_of};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, say};

impl ChangeLettersCommand {
    pub(super) async fn run(self, change: LetterChange) -> Result<Outcome, CommandError> {
        let selection = self.selection.selection();
        let is_wide = selection == DeadLetterSelection::all() && self.selection.group.is_none();
        if is_wide && !self.all {
            return Err(CommandError::configuration(
                "nothing is selected; name dead letters or a filter, or write `--all`",
            ));
        }
        let place = Place::open_to_change(&self.place).await?;
        let letters = letters_of(&place)?;
        let taken = self.taken(&place, &letters, change, selection).await?;
        if self.make.yes {
            let count = async { taken.count(&place, &letters, change).await };
            self.make.confirm.check(&place, count).await?;
            return self.apply(&place, &letters, change, &taken).await;
        }
        let dead_letters = taken.count(&place, &letters, change).await?;
        output::one(self.place.output, &LetterPreview::of(change, dead_letters))?;
        if dead_letters == 0 {
            say("no dead letter matches");
            return Ok(Outcome::NothingMatched);
        }
        say(PREVIEWED);
        Ok(Outcome::Done)
    }

    async fn taken(
        &self,
        place: &Place,
        letters: &DeadLetters,
        change: LetterChange,
        selection: DeadLetterSelection,
    ) -> Result<Taken, CommandError> {
        let rows = match (self.first, self.selection.group) {
            (None, None) => None,
            (first, _) => {
                let most = first.map_or(usize::MAX, |first| first as usize);
                let narrowed = change.narrow(&selection);
                let (rows, _) = self.selection.read(place, letters, &narrowed, most).await?;
                Some(rows)
            }
        };
        Ok(Taken { selection, rows })
    }
}

struct Taken {
    selection: DeadLetterSelection,
    rows: Option<Vec<LetterRow>>,
}

impl Taken {
    fn keys(rows: &[LetterRow]) -> Vec<Uuid> {
        rows.iter().map(|row| row.id).collect()
    }

    async fn count(
        &self,
        place: &Place,
        letters: &DeadLetters,
        change: LetterChange,
    ) -> Result<u64, CommandError> {
        if let Some(rows) = &self.rows {
            return Ok(rows.len() as u64);
        }
        place.ask(letters.count(&change.narrow(&self.selection))).await
    }
}

impl ChangeLettersCommand {
    async fn apply(
        &self,
        place: &Place,
        letters: &DeadLetters,
        change: LetterChange,
        taken: &Taken,
    ) -> Result<Outcome, CommandError> {
        let intent = self.make.intent.intent();
        let operation = match (self.selection.group, &taken.rows) {
            (Some(group), _) => change.operation_on_group(&taken.selection, group, intent),
            (None, Some(rows)) => change.operation(&DeadLetterSelection::ids(Taken::keys(rows)), intent),
            (None, None) => change.operation(&taken.selection, intent),
        };
        // After a crash or an error, committed transactions stay; the same command continues.
        let changed = async {
            match &taken.rows {
                Some(rows) => {
                    let keys = Taken::keys(rows);
                    outbox_admin::carry_out_by_key(letters, change, &keys, &operation).await
                }
                None => outbox_admin::carry_out_letters(letters, change, &taken.selection, &operation).await,
            }
        };
        let changed = place.carry_out(changed).await?;
        let (one, many) = match change {
            LetterChange::Retry => (
                "dead letter is marked for retry",
                "dead letters are marked for retry",
            ),
            LetterChange::CancelRetry => ("dead letter is open again", "dead letters are open again"),
            LetterChange::Discard => ("dead letter is deleted", "dead letters are deleted"),
        };
        let what = text::counted(changed, one, many);
        Changed::new(change, changed, operation.id, what).say(self.place.output)
    }
}
