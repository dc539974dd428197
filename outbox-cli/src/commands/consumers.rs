//! `outbox consumers`: lag and pauses of consumers with inbox tables in the database of the outbox.

use std::time::Duration;

use crate::admin::{ConsumerRow, ListedConsumer, Plan};
use clap::{Args, Subcommand};
use outbox::core::{Operation, OperationKind, OperationScope};
use outbox::inbox::{PausedConsumer, PausedConsumers};
use tokio::time::Instant;

use super::arguments::{PlaceArguments, parse_between_looks};
use super::intent::{MakeArguments, NO_REASON};
use super::outcome::{Changed, previewed};
use super::place::Place;
use super::{stream, text};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, say, say_next};

/// Subcommands.
#[derive(Debug, Clone, Subcommand)]
pub enum ConsumersCommand {
    /// List consumers of the stream and paused consumers, with their unhandled messages.
    List(ListConsumersCommand),
    /// Pause a consumer in all its processes. `--yes` changes.
    Pause(PauseConsumerCommand),
    /// End the pause of a consumer. `--yes` changes.
    Resume(PauseConsumerCommand),
}

/// Arguments of `outbox consumers list`.
#[derive(Debug, Clone, Args)]
pub struct ListConsumersCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Measure again after this time (`1s` to `1h`) and extrapolate: when consumers catch up, and
    /// which messages expire unread.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "5s", value_parser = parse_between_looks)]
    pub forecast: Option<Duration>,
}

/// Arguments of `outbox consumers pause` and `outbox consumers resume`.
#[derive(Debug, Clone, Args)]
pub struct PauseConsumerCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The consumer.
    #[arg(value_name = "CONSUMER")]
    pub consumer: String,
    /// Change options.
    #[command(flatten)]
    pub make: MakeArguments,
}

impl ConsumersCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        match self {
            Self::List(command) => command.run().await,
            Self::Pause(command) => command.pause().await,
            Self::Resume(command) => command.resume().await,
        }
    }
}

impl ListConsumersCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let client = place.client().await.map_err(CommandError::failed)?;
        let mut earlier = None;
        if let Some(between) = self.forecast {
            let (begun, rows) = (Instant::now(), stream::rows(&place, client.clone()).await?);
            tokio::time::sleep(between).await;
            let filled = stream::filled(&place, client.clone()).await.ok();
            earlier = Some((rows, begun.elapsed(), filled.and_then(|stream| stream.max_age)));
        }
        let rows = stream::watched(&place, client).await?;
        let unseen = stream::unseen(&rows);
        let list = |row: ConsumerRow| match &earlier {
            Some((earlier, passed, max_age)) => {
                let before = earlier.iter().find(|before| before.consumer == row.consumer);
                let before = before.map(|before| (before, *passed));
                ListedConsumer::observed(row, before, *max_age)
            }
            None => ListedConsumer::new(row),
        };
        let rows: Vec<ListedConsumer> = rows.into_iter().map(list).collect();
        output::list(self.place.output, &rows)?;
        for ListedConsumer { row, .. } in &rows {
            for reason in &row.reasons {
                say(&format!("{}: {}", row.consumer, reason.what));
                say(output::next_lines(&reason.next, "  ").trim_end());
            }
        }
        if let Some(unseen) = unseen {
            say(&format!("not checked: dead letters and pauses: {unseen}"));
        }
        if rows.is_empty() {
            say("the stream has no durable consumer");
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Done)
    }
}

impl PauseConsumerCommand {
    async fn pause(self) -> Result<Outcome, CommandError> {
        let (place, paused, present) = self.open().await?;
        let effect = "would pause it: running handlers finish, no handler starts, messages wait on the stream, and no attempts are used";
        let plan = match present {
            Some(other) => self.nothing("pause", format!("already paused: {}", other.reason)),
            None => Plan::new("pause", &self.consumer, vec![effect.to_owned()]),
        };
        let outcome = match self.make.yes && plan.is_possible {
            false => previewed(self.place.output, &plan),
            true => {
                let operation = self.operation(&place, OperationKind::PauseConsumer).await?;
                let reason = operation.intent.reason.as_deref().unwrap_or(NO_REASON);
                // Pause and operation commit in one transaction: after a crash, both exist or
                // neither.
                let pausing = paused.written_down(&operation);
                let changed = place.ask(pausing.pause(&self.consumer, reason)).await?;
                let what = "its processes start no handler after two seconds; messages wait on the stream";
                Changed::new("pause", changed.into(), operation.id, what.to_owned()).say(self.place.output)
            }
        };
        // The warning about an unknown consumer comes last, so the pause does not wait for NATS.
        warn_of_stranger(&place, &self.consumer).await;
        outcome
    }

    async fn resume(self) -> Result<Outcome, CommandError> {
        let (place, paused, present) = self.open().await?;
        let Some(present) = present else {
            let plan = self.nothing("resume", "it is not paused".to_owned());
            return previewed(self.place.output, &plan);
        };
        if !self.make.yes {
            let since = text::time(present.paused_at);
            let effect = format!("would end its pause since {since}: {}", present.reason);
            return previewed(
                self.place.output,
                &Plan::new("resume", &self.consumer, vec![effect]),
            );
        }
        let operation = self.operation(&place, OperationKind::ResumeConsumer).await?;
        let resuming = paused.written_down(&operation);
        let changed = place.ask(resuming.resume(&self.consumer)).await?;
        let what = "its processes continue within two seconds".to_owned();
        Changed::new("resume", changed.into(), operation.id, what).say(self.place.output)
    }

    async fn open(&self) -> Result<(Place, PausedConsumers, Option<PausedConsumer>), CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let names = place.outbox.table_names().map_err(CommandError::configuration)?;
        let paused = PausedConsumers::new(place.store.connection().clone()).with_names(names);
        let mut present = place.ask(paused.list()).await?;
        present.retain(|other| other.consumer == self.consumer);
        Ok((place, paused, present.pop()))
    }

    fn nothing(&self, change: &'static str, why: String) -> Plan {
        Plan::nothing(change, &self.consumer, why)
    }

    async fn operation(&self, place: &Place, kind: OperationKind) -> Result<Operation, CommandError> {
        self.make.confirm.check(place, async { Ok(1) }).await?;
        let scope = OperationScope::names([&self.consumer]);
        Ok(Operation::new(kind, scope, self.make.intent.intent()))
    }
}

const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Warns of an unknown consumer: misspelt, or not created yet.
async fn warn_of_stranger(place: &Place, consumer: &str) {
    let asked = async {
        let client = place.client().await.ok()?;
        stream::has_consumer(place, client, consumer).await
    };
    let asked = tokio::time::timeout(ANSWER_MAX.min(place.timeout), asked).await;
    if let Ok(Some(false)) = asked {
        say(&format!(
            "warning: stream {} has no consumer {consumer}: the name is misspelt, its inbox has never run, or it reads another stream",
            place.outbox.section.stream.name
        ));
        say_next("outbox consumers list");
    }
}
