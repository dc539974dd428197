//! `outbox dead-letters retry`, `cancel-retry` and `discard`.

use crate::admin::LetterChange;
use outbox::inbox::{DeadLetterSelection, DeadLetters};
use uuid::Uuid;

use super::super::outcome::{Changed, previewed};
use super::super::place::Place;
use super::super::text;
use super::{ChangeLettersCommand, letters_of};
use crate::failure::{CommandError, Outcome};

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
        let narrowed = change.narrow(&selection);
        let keys = self.keys(&place, &letters, &narrowed).await?;
        let count = async {
            match &keys {
                Some(keys) => Ok(keys.len() as u64),
                None => place.ask(letters.count(&narrowed)).await,
            }
        };
        if !self.make.yes {
            return previewed(self.place.output, &change.preview(count.await?));
        }
        self.make.confirm.check(&place, count).await?;
        let intent = self.make.intent.intent();
        let operation = match (self.selection.group, &keys) {
            (Some(group), _) => change.operation_on_group(&selection, group, intent),
            (None, Some(keys)) => change.operation(&DeadLetterSelection::ids(keys.iter().copied()), intent),
            (None, None) => change.operation(&selection, intent),
        };
        let changed = async {
            match &keys {
                Some(keys) => crate::admin::carry_out_by_key(&letters, change, keys, &operation).await,
                None => crate::admin::carry_out_letters(&letters, change, &selection, &operation).await,
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

    /// The selected keys, if a group or a limit narrows the selection.
    async fn keys(
        &self,
        place: &Place,
        letters: &DeadLetters,
        selection: &DeadLetterSelection,
    ) -> Result<Option<Vec<Uuid>>, CommandError> {
        if self.first.is_none() && self.selection.group.is_none() {
            return Ok(None);
        }
        let most = self.first.map_or(usize::MAX, |first| first as usize);
        let (rows, _) = self.selection.read(place, letters, selection, most).await?;
        Ok(Some(rows.into_iter().map(|row| row.id).collect()))
    }
}
