//! `outbox pause` and `outbox unpause`: stop publishing without a deploy, of everything or of an aggregate type, and go on.
//!
//! Invariant: nothing is changed without `--yes`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use outbox::core::PauseRequest;
use outbox_admin::{PausePreview, PauseRow};
use serde::Serialize;

use super::arguments::{PlaceArguments, parse_duration};
use super::confirm::ConfirmArguments;
use super::intent::ActorArguments;
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Print, plain, say};

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
    /// Why, for whoever finds it paused.
    #[arg(long, value_name = "TEXT", default_value = "no reason was given")]
    pub reason: String,
    /// Who, for whoever finds it paused.
    #[command(flatten)]
    pub actor: ActorArguments,
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
            output::one(self.place.output, &place.ask(preview).await?)?;
            say("nothing was changed; repeat it with `--yes`");
            return Ok(Outcome::Well);
        }
        self.confirm.check(&place, async { Ok(1) }).await?;
        let request = PauseRequest {
            aggregate_type: self.aggregate_type.clone(),
            reason: self.reason,
            by: self.actor.intent().actor,
            lasts: self.lasts,
        };
        // One statement: after a crash it is paused, or it is not; `outbox pause --list` shows which.
        place
            .carry_out(outbox_admin::apply_pause(&place.store, &request))
            .await?;
        let done = Paused {
            change: "pause",
            aggregate_type: self.aggregate_type,
            changed: true,
        };
        output::one(self.place.output, &done)?;
        Ok(Outcome::Well)
    }
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
        let ended = outbox_admin::apply_unpause(&place.store, aggregate_type);
        let done = Paused {
            change: "unpause",
            changed: place.carry_out(ended).await?,
            aggregate_type: self.aggregate_type,
        };
        output::one(self.place.output, &done)?;
        Ok(match done.changed {
            true => Outcome::Well,
            false => Outcome::NothingMatched,
        })
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

/// What `pause` or `unpause` has done.
#[derive(Debug, Serialize)]
struct Paused {
    change: &'static str,
    aggregate_type: Option<String>,
    /// Whether there was a pause to end; always true of `pause`.
    changed: bool,
}

impl Print for Paused {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("change", Print::name),
        Column::new("aggregate_type", |done| text::any(done.aggregate_type.clone())),
        Column::new("changed", |done| text::yes(done.changed)),
    ];

    fn name(&self) -> String {
        self.change.to_owned()
    }

    fn text(&self) -> Option<String> {
        let scope = plain(&scope(self.aggregate_type.as_deref()));
        Some(match (self.change, self.changed) {
            ("pause", _) => format!("publishing of {scope} is paused; next: outbox pause --list\n"),
            (_, true) => format!("publishing of {scope} goes on; next: outbox status\n"),
            (_, false) => format!("publishing of {scope} was not paused; next: outbox pause --list\n"),
        })
    }
}
