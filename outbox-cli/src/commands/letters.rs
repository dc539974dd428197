//! `outbox dead-letters`: consumer dead letters with inbox tables in the database of the outbox.

mod change;
mod groups;

use crate::admin::{GroupFingerprint, LetterChange, LetterDetail, LetterRow, input};
use clap::{Args, Subcommand};
use outbox::core::Aggregate;
use outbox::inbox::{DeadLetterSelection, DeadLetters};
use time::OffsetDateTime;
use uuid::Uuid;

use super::arguments::{LimitArguments, PlaceArguments};
use super::intent::MakeArguments;
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, say};

pub use groups::GroupLettersCommand;

const GROUPED_MAX: usize = 100_000;

/// Subcommands.
#[derive(Debug, Clone, Subcommand)]
pub enum LettersCommand {
    /// List dead letters, oldest first.
    List(ListLettersCommand),
    /// Group dead letters by error, largest group first.
    Groups(GroupLettersCommand),
    /// Show a dead letter; with `--payload` also its masked payload.
    Show(ShowLetterCommand),
    /// Let consumers handle dead letters again. `--yes` changes.
    Retry(ChangeLettersCommand),
    /// Cancel retries that have not begun. `--yes` changes.
    CancelRetry(ChangeLettersCommand),
    /// Delete dead letters. `--yes` deletes.
    Discard(ChangeLettersCommand),
}

/// Which dead letters.
#[derive(Debug, Clone, Default, Args)]
pub struct LetterSelectionArguments {
    /// Only dead letters with these keys.
    #[arg(value_name = "DEAD_LETTER", value_parser = input::letter_id)]
    pub ids: Vec<Uuid>,
    /// Only dead letters of this consumer. Without this option the database reads all dead letters.
    #[arg(long, value_name = "NAME")]
    pub consumer: Option<String>,
    /// Only dead letters of this event type, such as `order.placed`.
    #[arg(long = "type", value_name = "EVENT")]
    pub event_type: Option<String>,
    /// Only dead letters of this aggregate, such as `order/4711`.
    #[arg(long, value_name = "TYPE/ID", value_parser = input::aggregate)]
    pub aggregate: Option<Aggregate>,
    /// Only dead letters since this time: `2h` ago, a date, or a time by RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = input::time)]
    pub since: Option<OffsetDateTime>,
    /// Only dead letters before this time.
    #[arg(long, value_name = "TIME", value_parser = input::time)]
    pub until: Option<OffsetDateTime>,
    /// Only dead letters of this group, by the fingerprint of `outbox dead-letters groups`.
    #[arg(long, value_name = "FINGERPRINT")]
    pub group: Option<GroupFingerprint>,
}

impl LetterSelectionArguments {
    fn selection(&self) -> DeadLetterSelection {
        let mut selection = DeadLetterSelection::all();
        selection.ids = (!self.ids.is_empty()).then(|| self.ids.clone());
        selection.consumer.clone_from(&self.consumer);
        selection.event_type.clone_from(&self.event_type);
        selection.aggregate.clone_from(&self.aggregate);
        selection.from = self.since;
        selection.until = self.until;
        selection
    }

    /// At most `most` rows, oldest first, and whether the list is complete.
    async fn read(
        &self,
        place: &Place,
        letters: &DeadLetters,
        selection: &DeadLetterSelection,
        most: usize,
    ) -> Result<(Vec<LetterRow>, bool), CommandError> {
        place
            .ask(crate::admin::read_letters(letters, selection, self.group, most))
            .await
    }
}

/// Arguments of `outbox dead-letters list`.
#[derive(Debug, Clone, Args)]
pub struct ListLettersCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The dead letters.
    #[command(flatten)]
    pub selection: LetterSelectionArguments,
    /// How many.
    #[command(flatten)]
    pub limit: LimitArguments,
}

/// Arguments of `outbox dead-letters show`.
#[derive(Debug, Clone, Args)]
pub struct ShowLetterCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The dead letter, by its key.
    #[arg(value_name = "DEAD_LETTER", value_parser = input::letter_id)]
    pub id: Uuid,
    /// Also show the payload, with sensitive fields masked. Only for events of the program or the
    /// file (`events`).
    #[arg(long)]
    pub payload: bool,
}

/// Arguments of changes.
#[derive(Debug, Clone, Args)]
pub struct ChangeLettersCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The dead letters.
    #[command(flatten)]
    pub selection: LetterSelectionArguments,
    /// Only the first selected dead letters: try one before the rest.
    #[arg(long = "limit", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub first: Option<u32>,
    /// Dead letters of all consumers.
    #[arg(long)]
    pub all: bool,
    /// Change options.
    #[command(flatten)]
    pub make: MakeArguments,
}

impl LettersCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        match self {
            Self::List(command) => command.run().await,
            Self::Groups(command) => command.run().await,
            Self::Show(command) => command.run().await,
            Self::Retry(command) => command.run(LetterChange::Retry).await,
            Self::CancelRetry(command) => command.run(LetterChange::CancelRetry).await,
            Self::Discard(command) => command.run(LetterChange::Discard).await,
        }
    }
}

fn letters_of(place: &Place) -> Result<DeadLetters, CommandError> {
    let names = place.outbox.table_names().map_err(CommandError::configuration)?;
    Ok(DeadLetters::new(place.store.connection().clone()).with_names(names))
}

impl ListLettersCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let (letters, limit) = (letters_of(&place)?, self.limit.limit.get() as usize);
        let selection = self.selection.selection();
        let (rows, _) = self.selection.read(&place, &letters, &selection, limit).await?;
        output::list(self.place.output, &rows)?;
        if rows.len() == limit {
            say("there may be more: `--limit`");
        }
        if rows.is_empty() {
            say("no dead letter matches");
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Done)
    }
}

impl ShowLetterCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let letters = letters_of(&place)?;
        let shown = self.payload.then(|| place.shown());
        let detail = crate::admin::show_letter(&letters, self.id, shown.as_ref());
        let Some(detail) = place.ask(detail).await? else {
            say("dead letter not found: handled, discarded, or of another outbox");
            return Ok(Outcome::NothingMatched);
        };
        output::one(self.place.output, &detail)?;
        Ok(Outcome::Done)
    }
}

impl Print for LetterDetail {
    fn text(&self) -> String {
        text::lines(self)
    }
}
