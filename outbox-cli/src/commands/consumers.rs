//! `outbox consumers`: lag and pauses of consumers with inbox tables beside the outbox.
//!
//! Invariant: nothing changes without `--yes`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Args, Subcommand};
use outbox::core::{Intent, Operation, OperationId, OperationKind, OperationScope};
use outbox::inbox::{PausedConsumers, check_consumer_name};
use outbox_admin::{Column, Columns as _, ConsumerRow, ListedConsumer};
use serde::Serialize;

use super::arguments::{ForecastArguments, PlaceArguments};
use super::change::say_operation;
use super::intent::{MakeArguments, NO_REASON};
use super::place::Place;
use super::{foresee, stream, text};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, plain, say, say_next};

/// The commands about consumers.
#[derive(Debug, Clone, Subcommand)]
#[non_exhaustive]
pub enum ConsumersCommand {
    /// List consumers of the stream and paused consumers, with their unhandled messages.
    List(ListConsumersCommand),
    /// Show the lag of a consumer, with causes.
    Lag(LagCommand),
    /// Pause a consumer in all its processes. `--yes` changes.
    Pause(PauseCommand),
    /// End the pause of a consumer. `--yes` changes.
    Resume(ResumeConsumerCommand),
}

/// Arguments of `outbox consumers list`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ListConsumersCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Whether to look twice.
    #[command(flatten)]
    pub forecast: ForecastArguments,
}

/// Arguments of `outbox consumers lag`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct LagCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The consumer.
    #[arg(value_name = "CONSUMER")]
    pub consumer: String,
}

/// Arguments of `outbox consumers pause`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct PauseCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The consumer.
    #[arg(value_name = "CONSUMER")]
    pub consumer: String,
    /// How the change is made.
    #[command(flatten)]
    pub make: MakeArguments,
}

/// Arguments of `outbox consumers resume`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ResumeConsumerCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The consumer.
    #[arg(value_name = "CONSUMER")]
    pub consumer: String,
    /// How the change is made.
    #[command(flatten)]
    pub make: MakeArguments,
}

impl ConsumersCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        match self {
            Self::List(command) => command.run().await,
            Self::Lag(command) => command.run().await,
            Self::Pause(command) => command.run().await,
            Self::Resume(command) => command.run().await,
        }
    }
}

fn paused_of(place: &Place) -> Result<PausedConsumers, CommandError> {
    let names = place.outbox.table_names().map_err(CommandError::configuration)?;
    Ok(PausedConsumers::new(place.store.connection().clone()).with_names(names))
}

impl ListConsumersCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let client = place.client().await.map_err(CommandError::failed)?;
        let (rows, unseen) = stream::watched(&place, client).await?;
        let of_rows = stream::unseen(&rows);
        let forecast = foresee::foresee(&place, self.forecast).await?;
        let rows: Vec<ListedConsumer> = rows
            .into_iter()
            .map(|row| ListedConsumer::new(row, forecast.as_ref()))
            .collect();
        output::many(self.place.output, &rows)?;
        if let Some(unseen) = unseen.or(of_rows) {
            say(&format!("not checked: dead letters and pauses: {unseen}"));
        }
        if rows.is_empty() {
            say("the stream has no durable consumer");
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Well)
    }
}

impl LagCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        // A malformed name is an error even if the servers are down.
        check_consumer_name(&self.consumer).map_err(CommandError::configuration)?;
        let client = place.client().await.map_err(CommandError::failed)?;
        let consumers = stream::consumers_of(&place, client)?;
        let mut row = [place
            .ask(outbox_admin::consumer(&consumers, &self.consumer))
            .await?];
        stream::watch(&consumers, &mut row).await;
        let [row] = row;
        let state = row.state;
        output::one(self.place.output, &Lag(row))?;
        Ok(state.into())
    }
}

impl PauseCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let paused = paused_of(&place)?;
        let now = place.ask(paused.list()).await?;
        let mut change = PauseChange::new("pause", &self.consumer);
        match now.iter().find(|other| other.consumer == self.consumer) {
            Some(other) => change.effect = format!("nothing: it is paused already: {}", other.reason),
            // One transaction: after a crash, pause and operation both exist or neither does.
            None if self.make.yes => {
                self.make.confirm.check(&place, async { Ok(1) }).await?;
                let intent = self.make.intent.intent();
                let reason = intent.reason.clone().unwrap_or_else(|| NO_REASON.to_owned());
                let operation = operation(OperationKind::PauseConsumer, &self.consumer, intent);
                let paused = paused.written_down(&operation);
                change.changed = place.ask(paused.pause(&self.consumer, &reason)).await?;
                change.operation = change.changed.then_some(operation.id);
                change.effect =
                    "its processes begin nothing more within two seconds; messages wait on the stream"
                        .to_owned();
            }
            None => {
                change.effect =
                    "would pause it: what runs ends, nothing begins, messages wait on the stream, and no attempts are used".to_owned();
            }
        }
        let outcome = change.end(
            &self.place,
            self.make.yes,
            now.iter().any(|other| other.consumer == self.consumer),
        );
        // Last, so a pause does not wait for NATS.
        warn_of_stranger(&place, &self.consumer).await;
        outcome
    }
}

/// Bound on a read that only adds a warning.
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

impl ResumeConsumerCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let paused = paused_of(&place)?;
        let now = place.ask(paused.list()).await?;
        let mut change = PauseChange::new("resume", &self.consumer);
        let found = now.iter().find(|other| other.consumer == self.consumer);
        match found {
            None => change.effect = "nothing: it is not paused".to_owned(),
            Some(_) if self.make.yes => {
                self.make.confirm.check(&place, async { Ok(1) }).await?;
                let operation = operation(
                    OperationKind::ResumeConsumer,
                    &self.consumer,
                    self.make.intent.intent(),
                );
                let paused = paused.written_down(&operation);
                change.changed = place.ask(paused.resume(&self.consumer)).await?;
                change.operation = change.changed.then_some(operation.id);
                change.effect = "its processes go on within two seconds".to_owned();
            }
            Some(other) => {
                change.effect = format!(
                    "would end its pause since {}: {}",
                    text::time(other.paused_at),
                    other.reason
                );
            }
        }
        change.end(&self.place, self.make.yes, found.is_none())
    }
}

#[derive(Debug, Serialize)]
struct PauseChange {
    change: &'static str,
    consumer: String,
    changed: bool,
    effect: String,
    #[serde(serialize_with = "text_if_any")]
    operation: Option<OperationId>,
}

fn text_if_any<S: serde::Serializer>(id: &Option<OperationId>, to: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => to.collect_str(id),
        None => to.serialize_none(),
    }
}

fn operation(kind: OperationKind, consumer: &str, intent: Intent) -> Operation {
    Operation::new(kind, OperationScope::names([consumer]), intent)
}

impl PauseChange {
    fn new(change: &'static str, consumer: &str) -> Self {
        Self {
            change,
            consumer: consumer.to_owned(),
            changed: false,
            effect: String::new(),
            operation: None,
        }
    }

    fn end(self, place: &PlaceArguments, yes: bool, is_idle: bool) -> Result<Outcome, CommandError> {
        output::one(place.output, &self)?;
        say_operation(self.operation);
        if is_idle {
            return Ok(Outcome::NothingMatched);
        }
        if !yes {
            say("nothing was changed; repeat it with `--yes`");
        }
        Ok(Outcome::Well)
    }
}

impl Print for PauseChange {
    fn name(&self) -> String {
        self.consumer.clone()
    }

    fn text(&self) -> Option<String> {
        Some(format!("{}: {}\n", plain(&self.consumer), plain(&self.effect)))
    }
}

impl Print for ListedConsumer {
    fn columns() -> &'static [Column<Self>] {
        Self::COLUMNS
    }

    fn name(&self) -> String {
        self.row.consumer.clone()
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Lag(ConsumerRow);

impl Print for Lag {
    fn name(&self) -> String {
        self.0.consumer.clone()
    }

    fn text(&self) -> Option<String> {
        let mut text = text::lines(&ListedConsumer::new(self.0.clone(), None));
        if let Some(unseen) = &self.0.unseen {
            let _ = writeln!(text, "not checked: dead letters and pauses: {}", plain(unseen));
        }
        for reason in &self.0.reasons {
            let _ = writeln!(text, "{}: {}", reason.state, plain(&reason.what));
            text.push_str(&output::next_lines(&reason.next, "  "));
        }
        Some(text)
    }
}
