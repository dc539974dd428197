//! `outbox resume`: ends a back-off or a pause.
//!
//! Invariant: nothing changes without `--yes`.

use clap::Args;
use outbox::core::Aggregate;
use outbox_admin::{ResumePreview, StreamView as _, input};
use serde::Serialize;

use super::arguments::PlaceArguments;
use super::change::say_operation;
use super::intent::MakeArguments;
use super::pause::{self, parse_aggregate_type};
use super::place::Place;
use super::recheck;
use super::stream_view::Stream;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, plain, say};

/// Arguments of `outbox resume`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ResumeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The aggregate whose back-off ends, such as `order/4711`. Without an aggregate, a pause ends.
    #[arg(value_name = "TYPE/ID", value_parser = input::aggregate, conflicts_with = "aggregate_type")]
    pub aggregate: Option<Aggregate>,
    /// End the pause of aggregates of this type. Without this option, the pause of all messages ends.
    #[arg(long, value_name = "TYPE", value_parser = parse_aggregate_type)]
    pub aggregate_type: Option<String>,
    /// How the change is made.
    #[command(flatten)]
    pub make: MakeArguments,
}

impl ResumeCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        match &self.aggregate {
            Some(aggregate) => self.end_back_off(&place, aggregate).await,
            None => self.end_pause(&place).await,
        }
    }

    async fn end_back_off(&self, place: &Place, aggregate: &Aggregate) -> Result<Outcome, CommandError> {
        let mut preview = place
            .ask(outbox_admin::preview_resume(&place.store, aggregate))
            .await?;
        if !self.make.yes && preview.can_resume {
            let stream = Stream::new(place, &self.place);
            let refuses = tokio::time::timeout(place.timeout, stream.refuses()).await;
            let broker = refuses.unwrap_or_else(|_| Err(format!("no answer within {:?}", place.timeout)));
            let causes = outbox_admin::causes_of_aggregate(&place.store, aggregate, broker);
            preview.recheck(place.ask(causes).await?);
        }
        if !self.make.yes || !preview.can_resume {
            output::one(self.place.output, &preview)?;
            if !preview.can_resume {
                return Ok(Outcome::NothingMatched);
            }
            say("nothing was changed; repeat it with `--yes`");
            return Ok(Outcome::Well);
        }
        self.make.confirm.check(place, async { Ok(1) }).await?;
        let intent = self.make.intent.intent();
        let operation = place
            .ask(outbox_admin::apply_resume(&place.store, aggregate, intent))
            .await?;
        let resumed = Resumed {
            change: "resume",
            aggregate_type: aggregate.aggregate_type.clone(),
            aggregate_id: aggregate.id.clone(),
            resumed: operation.is_some(),
            operation: operation.map(|id| id.to_string()),
        };
        output::one(self.place.output, &resumed)?;
        say_operation(operation);
        Ok(match operation {
            Some(_) => Outcome::Well,
            None => Outcome::NothingMatched,
        })
    }

    async fn end_pause(&self, place: &Place) -> Result<Outcome, CommandError> {
        let aggregate_type = self.aggregate_type.as_deref();
        let preview = outbox_admin::preview_unpause(&place.store, aggregate_type);
        let preview = place.ask(preview).await?;
        if !self.make.yes {
            output::one(self.place.output, &preview)?;
            if preview.present.is_none() {
                return Ok(Outcome::NothingMatched);
            }
            say("nothing was changed; repeat it with `--yes`");
            return Ok(Outcome::Well);
        }
        let count = async { Ok(preview.present.is_some().into()) };
        self.make.confirm.check(place, count).await?;
        let operation = outbox_admin::unpause_operation(aggregate_type, self.make.intent.intent());
        // The end of the pause and the operation commit together. After a crash, relays release the
        // held messages.
        let done = outbox_admin::apply_unpause(&place.store, aggregate_type, &operation);
        pause::end(self.place.output, &place.carry_out(done).await?)
    }
}

#[derive(Debug, Serialize)]
struct Resumed {
    change: &'static str,
    aggregate_type: String,
    aggregate_id: String,
    resumed: bool,
    operation: Option<String>,
}

impl Print for ResumePreview {
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
