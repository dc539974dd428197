//! `outbox retry`, `skip`, `replay` and `resume`: what they would do, and with `--yes` the change itself.
//!
//! Invariant: nothing is changed without `--yes`, and nobody is asked a question without a terminal, so a script never hangs. Whatever is changed has an operation, with which it can go on
//! after a crash.

use std::fmt::Write as _;
use std::num::NonZeroU64;

use clap::Args;
use outbox::Failure;
use outbox::core::{Aggregate, Operation, OperationId, OutboxAudit as _};
use outbox::nats::JetStreamPublisher;
use outbox_admin::{Applied, Change, Preview, ResumePreview, unforeseen};
use serde::Serialize;

use super::arguments::{PlaceArguments, SelectionArguments, parse_aggregate, refuse_everything};
use super::audit::parse_operation;
use super::confirm::ConfirmArguments;
use super::intent::IntentArguments;
use super::place::Place;
use super::progress::Progress;
use super::{recheck, takers, text};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Print, plain, say};

/// Arguments of `outbox retry`, `skip` and `replay`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ChangeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The messages.
    #[command(flatten)]
    pub selection: SelectionArguments,
    /// All messages that the command can change.
    #[arg(long)]
    pub all: bool,
    /// Only the first ones of those that are selected, by the order of recording: try one before the rest. `--sample` is the same.
    #[arg(long, visible_alias = "sample", value_name = "N")]
    pub first: Option<NonZeroU64>,
    /// Go on with this operation, which broke off, instead of a new one. No message is taken twice.
    #[arg(long, value_name = "OPERATION", value_parser = parse_operation, conflicts_with_all = [
        "id", "aggregate", "aggregate_type", "event_type", "since", "until", "all", "first", "actor", "reason",
    ])]
    pub operation: Option<OperationId>,
    /// Who and why.
    #[command(flatten)]
    pub intent: IntentArguments,
    /// Do it. Otherwise the command only says what it would do.
    #[arg(long)]
    pub yes: bool,
    /// How it is confirmed in production.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

impl ChangeCommand {
    pub(super) async fn run(self, change: Change) -> Result<Outcome, CommandError> {
        if self.operation.is_none() {
            refuse_everything(&self.selection, self.all)?;
        }
        let place = Place::open_to_change(&self.place).await?;
        let Some(id) = self.operation else {
            let selection = self.selection.selection();
            if self.yes {
                let operation = change.operation(&selection, self.first, self.intent.intent());
                return self.apply(&place, change, &operation).await;
            }
            let preview = outbox_admin::preview(&place.store, change, &selection, self.first);
            let mut preview = place.ask(preview).await?;
            self.add(&place, &mut preview).await?;
            return self.say(change, &preview);
        };
        let begun = place.ask(place.store.operation(id)).await?;
        let Some(begun) = begun.filter(|begun| Change::of(begun) == Some(change)) else {
            let verb = change.as_str();
            return Err(CommandError::configuration(format!(
                "there is no operation {id} that does `{verb}`; `outbox audit --kind {verb}` lists those that are there"
            )));
        };
        if self.yes {
            return self.apply(&place, change, &begun).await;
        }
        match place
            .ask(outbox_admin::preview_rest(&place.store, &begun))
            .await?
        {
            Some(mut preview) => {
                self.add(&place, &mut preview).await?;
                self.say(change, &preview)
            }
            None => Ok(Outcome::NothingMatched),
        }
    }

    /// Adds what consumers would make of the first messages, and whether the causes still hold of which they have failed.
    async fn add(&self, place: &Place, preview: &mut Preview) -> Result<(), CommandError> {
        if preview.first.is_empty() {
            return Ok(());
        }
        // One connection for both.
        let publisher = place.publisher().await.map_err(|error| error.to_string());
        self.foresee(place, &publisher, preview).await;
        add_causes(place, publisher, preview).await;
        Ok(())
    }

    /// Asks which consumers of the stream are handed the first messages once they are published, and their inboxes what they remember of the events.
    async fn foresee(
        &self,
        place: &Place,
        publisher: &Result<JetStreamPublisher, String>,
        preview: &mut Preview,
    ) {
        let takers = match publisher {
            Ok(publisher) => takers::ask(place, publisher).await,
            Err(error) => Err(error.clone()),
        };
        let takers = match takers {
            Ok(takers) => takers,
            Err(unseen) => return preview.effects.push(unforeseen(unseen)),
        };
        let handed = outbox_admin::handed(&place.store, &preview.first, takers.consumers, takers.of);
        let handed = match place.ask(handed).await {
            Ok(handed) => handed,
            // The preview is whole without it.
            Err(CommandError::Configuration(error) | CommandError::Failed(error)) => {
                return preview.effects.push(unforeseen(error));
            }
        };
        let rows = takers::remembered(place, &self.place, &handed, &preview.sample).await;
        preview.foresee(&handed, rows.as_deref());
    }

    fn say(&self, change: Change, preview: &Preview) -> Result<Outcome, CommandError> {
        output::one(self.place.output, preview)?;
        if preview.messages == 0 && preview.is_complete {
            say(match self.operation {
                Some(_) => "nothing is left of it",
                None => nothing(change),
            });
            return Ok(Outcome::NothingMatched);
        }
        say("nothing was changed; repeat it with `--yes`");
        Ok(Outcome::Well)
    }

    async fn apply(
        &self,
        place: &Place,
        change: Change,
        operation: &Operation,
    ) -> Result<Outcome, CommandError> {
        let count = async {
            let left = outbox_admin::preview_rest(&place.store, operation);
            Ok(place.ask(left).await?.map_or(0, |preview| preview.messages))
        };
        self.confirm.check(place, count).await?;
        let progress = Progress::of(&self.place);
        let total = match progress.is_shown() {
            true => {
                let left = place
                    .ask(outbox_admin::preview_rest(&place.store, operation))
                    .await;
                // Without a count, progress has no end to show.
                let left = left.ok().flatten().filter(|left| left.is_complete);
                left.map(|left| left.messages)
            }
            false => None,
        };
        let look = async |place: &Place| {
            let found = place.ask(place.store.operation(operation.id)).await.ok()??;
            Some(found.changed.saturating_sub(operation.changed))
        };
        // A crash or an error here leaves the transactions that were completed, and the operation says how far they are.
        let applied = place.carry_out(outbox_admin::carry_out(&place.store, change, operation));
        let applied = progress
            .watch(place, (change.as_str(), total), look, applied)
            .await;
        drop(progress);
        let applied = applied.inspect_err(|_| {
            let (verb, id) = (change.as_str(), operation.id);
            say(&format!(
                "if `outbox audit show {id}` knows the operation, go on with `outbox {verb} --operation {id} --yes`; otherwise nothing was changed"
            ));
        })?;
        output::one(self.place.output, &applied)?;
        if applied.messages == 0 {
            say(nothing(change));
            return Ok(Outcome::NothingMatched);
        }
        say_operation(applied.operation);
        Ok(Outcome::Well)
    }
}

/// Adds whether the causes still hold of which the first messages have failed.
async fn add_causes(place: &Place, publisher: Result<JetStreamPublisher, String>, preview: &mut Preview) {
    let publisher = std::future::ready(publisher.map_err(Failure::from));
    let broker = recheck::refuses_by(publisher, place.timeout).await;
    let causes = outbox_admin::causes(&place.store, &preview.first, broker);
    match place.ask(causes).await {
        Ok(causes) => preview.recheck(causes),
        Err(CommandError::Configuration(failure) | CommandError::Failed(failure)) => {
            say(&format!("whether the causes still hold is not known: {failure}"));
        }
    }
}

/// Says how to find out what became of a change.
pub(super) fn say_operation(operation: Option<OperationId>) {
    if let Some(id) = operation {
        say(&format!("what became of it: outbox audit show {id}"));
    }
}

fn nothing(change: Change) -> &'static str {
    match change {
        Change::Retry => "no dead letter matches",
        Change::Skip => "no dead letter that halts its aggregate matches",
        _ => "no published message and no dead letter matches",
    }
}

/// Arguments of `outbox resume`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ResumeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The aggregate, such as `order/4711`.
    #[arg(value_name = "TYPE/ID", value_parser = parse_aggregate)]
    pub aggregate: Aggregate,
    /// Who and why.
    #[command(flatten)]
    pub intent: IntentArguments,
    /// Do it. Otherwise the command only says what it would do.
    #[arg(long)]
    pub yes: bool,
    /// How it is confirmed in production.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

impl ResumeCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let mut preview = place
            .ask(outbox_admin::preview_resume(&place.store, &self.aggregate))
            .await?;
        if !self.yes && preview.can_resume {
            let broker = recheck::refuses(&place).await;
            let causes = outbox_admin::causes_of_aggregate(&place.store, &self.aggregate, broker);
            preview.recheck(place.ask(causes).await?);
        }
        if !self.yes || !preview.can_resume {
            output::one(self.place.output, &preview)?;
            if !preview.can_resume {
                return Ok(Outcome::NothingMatched);
            }
            say("nothing was changed; repeat it with `--yes`");
            return Ok(Outcome::Well);
        }
        self.confirm.check(&place, async { Ok(1) }).await?;
        let intent = self.intent.intent();
        let resumed = place
            .ask(outbox_admin::apply_resume(&place.store, &self.aggregate, intent))
            .await?;
        let operation = resumed.operation;
        let resumed = Resumed {
            change: "resume",
            aggregate_type: self.aggregate.aggregate_type,
            aggregate_id: self.aggregate.id,
            resumed: resumed.resumed,
            operation: operation.map(|id| id.to_string()),
        };
        output::one(self.place.output, &resumed)?;
        say_operation(operation);
        Ok(if resumed.resumed {
            Outcome::Well
        } else {
            Outcome::NothingMatched
        })
    }
}

/// What `resume` has done.
#[derive(Debug, Serialize)]
struct Resumed {
    change: &'static str,
    aggregate_type: String,
    aggregate_id: String,
    /// Whether there was a back-off to end.
    resumed: bool,
    /// The operation that says so.
    operation: Option<String>,
}

impl Print for Preview {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("change", |preview| preview.change.as_str().to_owned()),
        Column::new("messages", |preview| preview.messages.to_string()),
        Column::new("complete", |preview| text::yes(preview.is_complete)),
        Column::new("aggregates", |preview| preview.aggregates.to_string()),
        Column::new("halts_ended", |preview| preview.halts_ended.to_string()),
        Column::new("in_order", |preview| preview.in_order.to_string()),
        Column::new("out_of_order", |preview| preview.out_of_order.to_string()),
        Column::new("recorded_from", |preview| {
            text::any(preview.recorded_from.map(text::time))
        }),
        Column::new("recorded_until", |preview| {
            text::any(preview.recorded_until.map(text::time))
        }),
    ];

    fn name(&self) -> String {
        self.change.as_str().to_owned()
    }

    fn text(&self) -> Option<String> {
        let verb = match self.change {
            Change::Replay => "copy",
            Change::Purge => "delete",
            other => other.as_str(),
        };
        let bound = if self.is_complete { "" } else { "at least " };
        let mut text = format!(
            "would {verb} {bound}{} of {}",
            text::counted(self.messages, "message", "messages"),
            text::counted(self.aggregates, "aggregate", "aggregates")
        );
        // Writing to a `String` does not fail.
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
        Some(text)
    }
}

impl Print for Applied {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("change", |applied| applied.change.as_str().to_owned()),
        Column::new("messages", |applied| applied.messages.to_string()),
        Column::new("operation", |applied| text::any(applied.operation)),
    ];

    fn name(&self) -> String {
        self.change.as_str().to_owned()
    }

    fn text(&self) -> Option<String> {
        let (one, many) = match self.change {
            Change::Retry => ("dead letter is pending again", "dead letters are pending again"),
            Change::Skip => ("dead letter is skipped", "dead letters are skipped"),
            Change::Purge => ("published message is deleted", "published messages are deleted"),
            _ => ("copy is recorded", "copies are recorded"),
        };
        Some(format!("{}\n", text::counted(self.messages, one, many)))
    }
}

impl Print for ResumePreview {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("aggregate", Print::name),
        Column::new("can_resume", |preview| text::yes(preview.can_resume)),
        Column::new("ends_in", |preview| {
            text::any(preview.blocked_for.map(text::duration))
        }),
        Column::new("halted_by", |preview| text::any(preview.halted_by)),
        Column::new("effect", |preview| preview.effect.clone()),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.aggregate_type, self.aggregate_id)
    }

    fn text(&self) -> Option<String> {
        let mut text = format!("{}: {}\n", plain(&self.name()), self.effect);
        for cause in &self.causes {
            text.push_str(&recheck::line(cause));
        }
        Some(text)
    }
}

impl Print for Resumed {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("aggregate", Print::name),
        Column::new("resumed", |resumed| text::yes(resumed.resumed)),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.aggregate_type, self.aggregate_id)
    }

    fn text(&self) -> Option<String> {
        let done = if self.resumed {
            "its back-off has ended"
        } else {
            "it is not blocked any more, or halted"
        };
        Some(format!("{}: {done}\n", plain(&self.name())))
    }
}
