//! `outbox pause`: pauses publishing of everything or of an aggregate type.
//!
//! Invariant: nothing changes without `--yes`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use outbox::core::PauseRequest;
use outbox_admin::{Column, Columns as _, PauseChanged, PausePreview, PauseRow, pause_scope};

use super::arguments::{PlaceArguments, parse_duration};
use super::change::say_operation;
use super::intent::{MakeArguments, NO_REASON};
use super::place::Place;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Format, Print, plain, say};

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
    /// Duration of the pause, such as `2h`, at most a century; otherwise until `outbox resume`.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub lasts: Option<Duration>,
    /// List active pauses.
    #[arg(long, conflicts_with_all = ["aggregate_type", "lasts", "yes"])]
    pub list: bool,
    /// How the change is made.
    #[command(flatten)]
    pub make: MakeArguments,
}

pub(super) fn parse_aggregate_type(text: &str) -> Result<String, String> {
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
        if !self.make.yes {
            let preview = outbox_admin::preview_pause(&place.store, aggregate_type, self.lasts);
            let mut preview = place.ask(preview).await?;
            preview.effects.extend(unknown_type(&place, aggregate_type).await);
            output::one(self.place.output, &preview)?;
            say("nothing was changed; repeat it with `--yes`");
            return Ok(Outcome::Well);
        }
        self.make.confirm.check(&place, async { Ok(1) }).await?;
        let intent = self.make.intent.intent();
        let request = PauseRequest {
            aggregate_type: self.aggregate_type.clone(),
            reason: intent.reason.clone().unwrap_or_else(|| NO_REASON.to_owned()),
            by: intent.actor.clone(),
            lasts: self.lasts,
        };
        let operation = outbox_admin::pause_operation(aggregate_type, intent);
        // One transaction: after a crash, pause and operation both exist or neither does.
        let done = outbox_admin::apply_pause(&place.store, &request, &operation);
        end(self.place.output, &place.carry_out(done).await?)
    }
}

/// Warns of an unknown aggregate type, by the rule of `outbox doctor`. Errors give no warning.
async fn unknown_type(place: &Place, aggregate_type: Option<&str>) -> Option<String> {
    let known = place.store.knows_type(aggregate_type?);
    let known = tokio::time::timeout(place.timeout, known).await.ok()?.ok()?;
    let sentence = "no aggregate of this type is known: write it as in the events, or nothing is held";
    (!known).then(|| sentence.to_owned())
}

pub(super) fn end(format: Format, done: &PauseChanged) -> Result<Outcome, CommandError> {
    output::one(format, done)?;
    say_operation(done.operation);
    Ok(match done.changed {
        true => Outcome::Well,
        false => Outcome::NothingMatched,
    })
}

impl Print for PauseRow {
    fn columns() -> &'static [Column<Self>] {
        Self::COLUMNS
    }

    fn name(&self) -> String {
        self.aggregate_type.clone().unwrap_or_else(|| "*".to_owned())
    }
}

impl Print for PausePreview {
    fn name(&self) -> String {
        self.change.to_owned()
    }

    fn text(&self) -> Option<String> {
        let scope = pause_scope(self.aggregate_type.as_deref());
        let mut text = format!("would {} publishing of {}\n", self.change, plain(&scope));
        for effect in &self.effects {
            let _ = writeln!(text, "  {}", plain(effect));
        }
        Some(text)
    }
}

impl Print for PauseChanged {
    fn name(&self) -> String {
        self.change.to_owned()
    }

    fn text(&self) -> Option<String> {
        let scope = plain(&pause_scope(self.aggregate_type.as_deref()));
        let (what, next) = match (self.change, self.changed) {
            ("pause", false) => ("was left as it is", "outbox pause --list"),
            ("pause", true) => ("is paused", "outbox pause --list"),
            (_, true) => ("goes on", "outbox status"),
            (_, false) => ("was not paused", "outbox pause --list"),
        };
        Some(format!(
            "publishing of {scope} {what}\n{}",
            output::next_line(&next.into(), "  ")
        ))
    }
}
