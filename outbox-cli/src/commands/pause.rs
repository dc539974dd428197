//! `outbox pause`: pauses publishing of everything or of an aggregate type.

use std::time::Duration;

use crate::admin::publishing_of;
use clap::Args;
use outbox::core::{Operation, OperationKind, OperationScope, OutboxAudit as _, PauseRequest};

use super::arguments::{PlaceArguments, parse_duration};
use super::intent::{MakeArguments, NO_REASON};
use super::outcome::{Changed, previewed};
use super::place::Place;
use crate::failure::{CommandError, Outcome};

/// Arguments of `outbox pause`.
#[derive(Debug, Clone, Args)]
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
    /// Change options.
    #[command(flatten)]
    pub make: MakeArguments,
}

pub(super) fn parse_aggregate_type(text: &str) -> Result<String, String> {
    match text {
        "" => Err("empty aggregate type; omit the option for all messages".to_owned()),
        text => Ok(text.to_owned()),
    }
}

impl PauseCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let aggregate_type = self.aggregate_type.as_deref();
        if !self.make.yes {
            let preview = crate::admin::preview_pause(&place.store, aggregate_type, self.lasts);
            let mut preview = place.ask(preview).await?;
            preview.effects.extend(unknown_type(&place, aggregate_type).await);
            return previewed(self.place.output, &preview);
        }
        self.make.confirm.check(&place, async { Ok(1) }).await?;
        let intent = self.make.intent.intent();
        let request = PauseRequest {
            aggregate_type: self.aggregate_type.clone(),
            reason: intent.reason.clone().unwrap_or_else(|| NO_REASON.to_owned()),
            by: intent.actor.clone(),
            lasts: self.lasts,
        };
        let scope = OperationScope::names(aggregate_type);
        let operation = Operation::new(OperationKind::Pause, scope, intent);
        // Pause and operation commit in one transaction: after a crash, both exist or neither.
        let paused = place
            .carry_out(place.store.pause_as(&request, &operation))
            .await?;
        let is = if paused { "is paused" } else { "is unchanged" };
        let what = format!("{} {is}", publishing_of(aggregate_type));
        Changed::new("pause", paused.into(), operation.id, what).say(self.place.output)
    }
}

/// Warns of an unknown aggregate type, by the rule of `outbox doctor`.
async fn unknown_type(place: &Place, aggregate_type: Option<&str>) -> Option<String> {
    let known = place.store.knows_type(aggregate_type?);
    let known = tokio::time::timeout(place.timeout, known).await.ok()?.ok()?;
    let sentence = "no aggregate of this type is known: write it as in the events, else no message is held";
    (!known).then(|| sentence.to_owned())
}
