//! `outbox dead-letters groups`: groups of failures.

use crate::admin::Command;
use clap::Args;

use super::super::arguments::PlaceArguments;
use super::super::place::Place;
use super::{GROUPED_MAX, LetterSelectionArguments, letters_of};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, say, say_next};

/// Arguments of `outbox dead-letters groups`.
#[derive(Debug, Clone, Args)]
pub struct GroupLettersCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The dead letters.
    #[command(flatten)]
    pub selection: LetterSelectionArguments,
}

impl GroupLettersCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let letters = letters_of(&place)?;
        let selection = self.selection.selection();
        let (rows, is_complete) = self
            .selection
            .read(&place, &letters, &selection, GROUPED_MAX)
            .await?;
        let groups = crate::admin::group_letters(&rows);
        output::list(self.place.output, &groups)?;
        if !is_complete {
            say(&format!(
                "there are more: only the oldest {GROUPED_MAX} were read; use `--since`"
            ));
        }
        let Some(first) = groups.first() else {
            say("no dead letter matches");
            return Ok(Outcome::NothingMatched);
        };
        say_next(
            Command::from("outbox dead-letters list")
                .option("--consumer", &first.consumer)
                .option("--group", first.fingerprint),
        );
        Ok(Outcome::Done)
    }
}
