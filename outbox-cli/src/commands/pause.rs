//! `outbox pause` and `outbox unpause`: stop publishing without a deploy, of everything or of an aggregate type, and go on.
//!
//! Invariant: nothing is changed without `--yes`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use outbox::core::{Operation, OperationId, OutboxAudit as _, PauseRequest};
use outbox_admin::{PauseChanged, PausePreview, PauseRow};

use super::arguments::{PlaceArguments, parse_duration};
use super::audit::parse_operation;
use super::change::say_operation;
use super::confirm::ConfirmArguments;
use super::intent::IntentArguments;
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::hint;
use crate::output::{self, Column, Format, Print, plain, say};

/// Arguments of `outbox pause`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct PauseCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Only aggregates of this type; otherwise all messages of the outbox.
    #[arg(long, value_name = "TYPE", value_parser = parse_aggregate_type)]
    pub aggregate_type: Option<String>,
    /// Until it ends by itself, such as `2h`, at most a century; otherwise it lasts until `outbox unpause`.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub lasts: Option<Duration>,
    /// Who and why, for whoever finds it paused, and for the audit.
    #[command(flatten)]
    pub intent: IntentArguments,
    /// The operation of a first try whose answer was lost: what it has done is not done again.
    #[arg(long, value_name = "OPERATION", value_parser = parse_operation, requires = "yes")]
    pub operation: Option<OperationId>,
    /// List the pauses that stand, and change nothing.
    #[arg(long, conflicts_with_all = ["aggregate_type", "lasts", "yes"])]
    pub list: bool,
    /// Do it. Otherwise the command only says what it would do.
    #[arg(long)]
    pub yes: bool,
    /// How it is confirmed.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

/// Arguments of `outbox unpause`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct UnpauseCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The pause of aggregates of this type; otherwise that of all messages.
    #[arg(long, value_name = "TYPE", value_parser = parse_aggregate_type)]
    pub aggregate_type: Option<String>,
    /// Who and why.
    #[command(flatten)]
    pub intent: IntentArguments,
    /// The operation of a first try whose answer was lost: what it has done is not done again.
    #[arg(long, value_name = "OPERATION", value_parser = parse_operation, requires = "yes")]
    pub operation: Option<OperationId>,
    /// Do it. Otherwise the command only says what it would do.
    #[arg(long)]
    pub yes: bool,
    /// How it is confirmed.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

fn parse_aggregate_type(text: &str) -> Result<String, String> {
    match text {
        "" => Err("an aggregate type is not empty; leave the argument out for all messages".to_owned()),
        text => Ok(text.to_owned()),
    }
}

impl PauseCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        if self.list {
            let place = Place::open(&self.place).await?;
            let pauses = place.ask(outbox_admin::pauses(&place.store)).await?;
            output::many(self.place.output, &pauses)?;
            if pauses.is_empty() {
                say("publishing is not paused");
            }
            return Ok(match pauses.is_empty() {
                true => Outcome::NothingMatched,
                false => Outcome::Well,
            });
        }
        let place = Place::open_to_change(&self.place).await?;
        let aggregate_type = self.aggregate_type.as_deref();
        if !self.yes {
            let preview = outbox_admin::preview_pause(&place.store, aggregate_type, self.lasts);
            let mut preview = place.ask(preview).await?;
            preview.effects.extend(unknown_type(&place, aggregate_type).await);
            output::one(self.place.output, &preview)?;
            say("nothing was changed; repeat it with `--yes`");
            return Ok(Outcome::Well);
        }
        self.confirm.check(&place, async { Ok(1) }).await?;
        let intent = self.intent.intent();
        let request = PauseRequest {
            aggregate_type: self.aggregate_type.clone(),
            reason: intent.reason.clone().unwrap_or_else(|| NO_REASON.to_owned()),
            by: intent.actor.clone(),
            lasts: self.lasts,
        };
        let operation = outbox_admin::pause_operation(aggregate_type, intent);
        let (operation, was_done) = repeated(&place, operation, self.operation).await?;
        // One transaction: after a crash it is paused and the operation says so, or neither.
        let done = outbox_admin::apply_pause(&place.store, &request, &operation);
        let done = place
            .carry_out(done)
            .await
            .inspect_err(|_| unknown("pause", &operation))?;
        end(self.place.output, &done, was_done)
    }
}

/// The sentence about an aggregate type that may be a typing error, by the rule of `outbox doctor`. A database that does not answer it has no say.
async fn unknown_type(place: &Place, aggregate_type: Option<&str>) -> Option<String> {
    let known = place.store.knows_type(aggregate_type?);
    let known = tokio::time::timeout(place.timeout, known).await.ok()?.ok()?;
    let sentence = "no aggregate of this type is known: write it as in the events, or nothing is held";
    (!known).then(|| sentence.to_owned())
}

/// Why, for whoever finds it paused, if nobody has said it.
const NO_REASON: &str = "no reason was given";

/// The operation, as the repetition of one whose answer was lost if its id is given; and whether that one was carried out.
async fn repeated(
    place: &Place,
    mut operation: Operation,
    id: Option<OperationId>,
) -> Result<(Operation, bool), CommandError> {
    let Some(id) = id else {
        return Ok((operation, false));
    };
    let found = place.ask(place.store.operation(id)).await?;
    let was_done = found.is_some();
    if let Some(found) = found.filter(|found| found.kind != operation.kind || found.scope != operation.scope)
    {
        return Err(CommandError::configuration(format!(
            "operation {id} is there and does something else: `{}`; `outbox audit show {id}` shows it",
            found.kind
        )));
    }
    operation.id = id;
    Ok((operation, was_done))
}

/// Says what to do after an answer that was lost.
fn unknown(verb: &str, operation: &Operation) {
    let id = operation.id;
    say(&format!(
        "if `outbox audit show {id}` knows the operation, it took effect; otherwise nothing was changed; `outbox {verb}` with `--operation {id}` and the same arguments \
         does it once, whichever it is"
    ));
}

fn end(format: Format, done: &PauseChanged, was_done: bool) -> Result<Outcome, CommandError> {
    output::one(format, done)?;
    say_operation(done.operation);
    if was_done {
        say("nothing was changed: the operation was carried out before");
    }
    Ok(match done.changed || was_done {
        true => Outcome::Well,
        false => Outcome::NothingMatched,
    })
}

impl UnpauseCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let aggregate_type = self.aggregate_type.as_deref();
        if !self.yes {
            let preview = outbox_admin::preview_unpause(&place.store, aggregate_type);
            let preview = place.ask(preview).await?;
            output::one(self.place.output, &preview)?;
            if preview.present.is_none() {
                return Ok(Outcome::NothingMatched);
            }
            say("nothing was changed; repeat it with `--yes`");
            return Ok(Outcome::Well);
        }
        let count = async {
            let preview = outbox_admin::preview_unpause(&place.store, aggregate_type);
            Ok(place.ask(preview).await?.present.is_some().into())
        };
        self.confirm.check(&place, count).await?;
        let operation = outbox_admin::unpause_operation(aggregate_type, self.intent.intent());
        let (operation, was_done) = repeated(&place, operation, self.operation).await?;
        // One transaction for the end of the pause and the operation. A crash behind it leaves what the pause held to the relays, which release it.
        let done = outbox_admin::apply_unpause(&place.store, aggregate_type, &operation);
        let done = place
            .carry_out(done)
            .await
            .inspect_err(|_| unknown("unpause", &operation))?;
        end(self.place.output, &done, was_done)
    }
}

impl Print for PauseRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("scope", Self::scope),
        Column::new("by", |row| row.by.clone()),
        Column::new("since", |row| text::time(row.since)),
        Column::new("ends_in", |row| text::any(row.ends_in.map(text::duration))),
        Column::new("reason", |row| row.reason.clone()),
    ];

    fn name(&self) -> String {
        self.aggregate_type.clone().unwrap_or_else(|| "*".to_owned())
    }
}

impl Print for PausePreview {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("change", Print::name),
        Column::new("aggregate_type", |preview| {
            text::any(preview.aggregate_type.clone())
        }),
        Column::new("unpublished", |preview| preview.unpublished.to_string()),
        Column::new("complete", |preview| text::yes(preview.is_complete)),
    ];

    fn name(&self) -> String {
        self.change.to_owned()
    }

    fn text(&self) -> Option<String> {
        let scope = scope(self.aggregate_type.as_deref());
        let mut text = format!("would {} publishing of {}\n", self.change, plain(&scope));
        // Writing to a `String` does not fail.
        for effect in &self.effects {
            let _ = writeln!(text, "  {}", plain(effect));
        }
        Some(text)
    }
}

fn scope(aggregate_type: Option<&str>) -> String {
    match aggregate_type {
        Some(aggregate_type) => format!("aggregates of type {aggregate_type}"),
        None => "all messages".to_owned(),
    }
}

impl Print for PauseChanged {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("change", Print::name),
        Column::new("aggregate_type", |done| text::any(done.aggregate_type.clone())),
        Column::new("changed", |done| text::yes(done.changed)),
        Column::new("operation", |done| text::any(done.operation)),
    ];

    fn name(&self) -> String {
        self.change.to_owned()
    }

    fn text(&self) -> Option<String> {
        let scope = plain(&scope(self.aggregate_type.as_deref()));
        let (what, next) = match (self.change, self.changed) {
            ("pause", false) => ("was left as it is", "outbox pause --list"),
            ("pause", true) => ("is paused", "outbox pause --list"),
            (_, true) => ("goes on", "outbox status"),
            (_, false) => ("was not paused", "outbox pause --list"),
        };
        Some(format!(
            "publishing of {scope} {what}\n{}",
            hint::line(&next.into(), "  ")
        ))
    }
}
