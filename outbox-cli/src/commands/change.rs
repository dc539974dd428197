//! `outbox retry` and `outbox replay`: preview, or with `--yes` the change.
//!
//! Every change has an operation that can continue after a crash.

use std::fmt::Write as _;
use std::num::NonZeroU64;

use crate::admin::{Change, Preview, input, look_ahead};
use clap::Args;
use outbox::core::{Operation, OperationId, OutboxAudit as _};

use super::arguments::{PlaceArguments, SelectionArguments, refuse_everything};
use super::intent::MakeArguments;
use super::outcome::{Changed, PREVIEWED};
use super::place::Place;
use super::stream_view::Stream;
use super::{recheck, text};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, plain, say};

/// Arguments of `outbox retry`.
#[derive(Debug, Clone, Args)]
pub struct RetryCommand {
    /// The dead letters.
    #[command(flatten)]
    pub change: ChangeCommand,
    /// Let halted aggregates continue without their dead letters, which are not published.
    #[arg(long)]
    pub skip: bool,
}

impl RetryCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let change = if self.skip { Change::Skip } else { Change::Retry };
        self.change.run(change).await
    }
}

/// Arguments of `outbox replay`, and of `outbox retry`.
#[derive(Debug, Clone, Args)]
pub struct ChangeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The messages.
    #[command(flatten)]
    pub selection: SelectionArguments,
    /// Change all messages that the command can change.
    #[arg(long)]
    pub all: bool,
    /// Only the first selected messages in the order of recording: test one before the rest.
    #[arg(long = "limit", value_name = "N")]
    pub first: Option<NonZeroU64>,
    /// Continue this interrupted operation. No message is changed twice.
    #[arg(long, value_name = "OPERATION", value_parser = input::operation_id, conflicts_with_all = [
        "id", "aggregate", "aggregate_type", "event_type", "since", "until", "all", "first", "actor", "reason",
    ])]
    pub operation: Option<OperationId>,
    /// Change options.
    #[command(flatten)]
    pub make: MakeArguments,
}

impl ChangeCommand {
    pub(super) async fn run(self, change: Change) -> Result<Outcome, CommandError> {
        if self.operation.is_none() {
            refuse_everything(&self.selection, self.all)?;
        }
        let place = Place::open_to_change(&self.place).await?;
        let Some(id) = self.operation else {
            let selection = self.selection.selection();
            if self.make.yes {
                let operation = change.operation(&selection, self.first, self.make.intent.intent());
                return self.apply(&place, change, &operation).await;
            }
            let preview = crate::admin::preview(&place.store, change, &selection, self.first);
            let mut preview = place.ask(preview).await?;
            self.add(&place, &mut preview).await;
            return self.say(change, &preview);
        };
        let begun = place.ask(place.store.operation(id)).await?;
        let Some(begun) = begun.filter(|begun| Change::of(begun) == Some(change)) else {
            let verb = change;
            return Err(CommandError::configuration(format!(
                "there is no `{verb}` operation {id}; `outbox audit --kind {verb}` lists operations"
            )));
        };
        if self.make.yes {
            return self.apply(&place, change, &begun).await;
        }
        match place
            .ask(crate::admin::preview_rest(&place.store, &begun))
            .await?
        {
            Some(mut preview) => {
                self.add(&place, &mut preview).await;
                self.say(change, &preview)
            }
            None => Ok(Outcome::NothingMatched),
        }
    }

    async fn add(&self, place: &Place, preview: &mut Preview) {
        let stream = Stream::new(place, &self.place.file);
        if let Some(unseen) = look_ahead(&place.store, &stream, preview, place.timeout).await {
            say(&format!("not checked: {unseen}"));
        }
    }

    fn say(&self, change: Change, preview: &Preview) -> Result<Outcome, CommandError> {
        output::one(self.place.output, preview)?;
        if preview.messages == 0 && preview.is_complete {
            say(match self.operation {
                Some(_) => "the operation has nothing left",
                None => nothing(change),
            });
            return Ok(Outcome::NothingMatched);
        }
        say(PREVIEWED);
        Ok(Outcome::Done)
    }

    async fn apply(
        &self,
        place: &Place,
        change: Change,
        operation: &Operation,
    ) -> Result<Outcome, CommandError> {
        let count = async {
            let left = crate::admin::preview_rest(&place.store, operation);
            Ok(place.ask(left).await?.map_or(0, |preview| preview.messages))
        };
        self.make.confirm.check(place, count).await?;
        // After a crash or an error, committed transactions stay and the operation records the
        // progress.
        let done = place.carry_out(crate::admin::carry_out(&place.store, operation));
        let done = done.await.inspect_err(|_| {
            let (verb, id) = (change.command(), operation.id);
            say(&format!(
                "if `outbox audit show {id}` finds the operation, continue with `outbox {verb} --operation {id} --yes`; otherwise nothing was changed"
            ));
        })?;
        if done.changed == 0 {
            say(nothing(change));
        }
        let (one, many) = match change {
            Change::Retry => ("dead letter is pending again", "dead letters are pending again"),
            Change::Skip => ("dead letter is skipped", "dead letters are skipped"),
            Change::Replay => ("copy is recorded", "copies are recorded"),
        };
        let what = text::counted(done.changed, one, many);
        Changed::new(change, done.changed, done.id, what).say(self.place.output)
    }
}

fn nothing(change: Change) -> &'static str {
    match change {
        Change::Retry => "no dead letter matches",
        Change::Skip => "no dead letter that halts its aggregate matches",
        Change::Replay => "no published message and no dead letter matches",
    }
}

impl Print for Preview {
    fn text(&self) -> String {
        let verb = match self.change {
            Change::Replay => "copy".to_owned(),
            other => other.to_string(),
        };
        let bound = if self.is_complete { "" } else { "at least " };
        let mut text = format!(
            "would {verb} {bound}{} of {}",
            text::counted(self.messages, "message", "messages"),
            text::counted(self.aggregates, "aggregate", "aggregates")
        );
        if let (Some(from), Some(until)) = (self.recorded_from, self.recorded_until) {
            let _ = write!(
                text,
                ", recorded from {} to {}",
                text::time(from),
                text::time(until)
            );
        }
        text.push('\n');
        for (event_type, messages) in &self.event_types {
            let _ = writeln!(text, "  {messages:>8}  {}", plain(event_type));
        }
        for error in &self.errors {
            let _ = writeln!(text, "  {:>8}  error: {}", error.messages, plain(&error.error));
        }
        if self.errors_unlisted > 0 {
            let _ = writeln!(text, "  {:>8}  with other errors", self.errors_unlisted);
        }
        for cause in &self.causes {
            text.push_str(&recheck::line(cause));
        }
        for effect in &self.effects {
            let _ = writeln!(text, "  {}", plain(effect));
        }
        text
    }
}
