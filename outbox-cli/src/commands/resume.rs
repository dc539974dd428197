//! `outbox resume`: ends a back-off or a pause.

use crate::admin::{StreamView as _, answered, input, publishing_of};
use clap::Args;
use outbox::core::{
    Aggregate, Operation, OperationKind, OperationScope, OutboxAudit as _, OutboxStore as _, StoreError,
};

use super::arguments::PlaceArguments;
use super::intent::MakeArguments;
use super::outcome::{Changed, previewed};
use super::pause::parse_aggregate_type;
use super::place::Place;
use super::stream_view::Stream;
use crate::failure::{CommandError, Outcome};

/// Arguments of `outbox resume`.
#[derive(Debug, Clone, Args)]
pub struct ResumeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// End the back-off of this aggregate, such as `order/4711`. Without an aggregate, end a pause.
    #[arg(value_name = "TYPE/ID", value_parser = input::aggregate, conflicts_with = "aggregate_type")]
    pub aggregate: Option<Aggregate>,
    /// End the pause of aggregates of this type. Without this option, the pause of all messages
    /// ends.
    #[arg(long, value_name = "TYPE", value_parser = parse_aggregate_type)]
    pub aggregate_type: Option<String>,
    /// Change options.
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
        let preview = crate::admin::preview_resume(&place.store, aggregate);
        let mut preview = place.ask(preview).await?;
        if !self.make.yes && preview.is_possible {
            let stream = Stream::new(place, &self.place.file);
            let broker = answered(place.timeout, stream.refuses()).await;
            let causes = crate::admin::causes_of_aggregate(&place.store, aggregate, broker);
            preview.causes = place.ask(causes).await?;
        }
        if !self.make.yes || !preview.is_possible {
            return previewed(self.place.output, &preview);
        }
        self.make.confirm.check(place, async { Ok(1) }).await?;
        let scope = OperationScope::aggregates(std::slice::from_ref(aggregate));
        let operation = Operation::new(OperationKind::Resume, scope, self.make.intent.intent());
        let resumed = place.ask(place.store.resume_as(aggregate, &operation)).await?;
        let what = match resumed {
            true => format!("{aggregate}: its back-off has ended"),
            false => format!("{aggregate}: no longer blocked, or halted"),
        };
        Changed::new("resume", resumed.into(), operation.id, what).say(self.place.output)
    }

    async fn end_pause(&self, place: &Place) -> Result<Outcome, CommandError> {
        let aggregate_type = self.aggregate_type.as_deref();
        let preview = crate::admin::preview_unpause(&place.store, aggregate_type);
        let preview = place.ask(preview).await?;
        if !self.make.yes {
            return previewed(self.place.output, &preview);
        }
        let count = async { Ok(preview.is_possible.into()) };
        self.make.confirm.check(place, count).await?;
        let scope = OperationScope::names(aggregate_type);
        let operation = Operation::new(OperationKind::Unpause, scope, self.make.intent.intent());
        // The end of the pause and the operation commit together. After a crash, relays release the
        // held messages.
        let ended = async {
            let ended = place.store.unpause_as(aggregate_type, &operation).await?;
            while place.store.finish_pauses().await? {}
            Ok::<_, StoreError>(ended)
        };
        let ended = place.carry_out(ended).await?;
        let goes = if ended { "continues" } else { "was not paused" };
        let what = format!("{} {goes}", publishing_of(aggregate_type));
        Changed::new("resume", ended.into(), operation.id, what).say(self.place.output)
    }
}
