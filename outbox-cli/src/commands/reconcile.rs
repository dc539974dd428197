//! `outbox reconcile`: counts published messages missing on the stream, with `--yes` publishes
//! them again.
//!
//! Invariant: nothing is published without `--yes`.

use std::fmt::Write as _;
use std::time::Duration;

use crate::admin::input;
use clap::Args;
use outbox::core::relay::reconcile::{self, ReconcileError, Reconciled, Span};
use outbox::core::{Operation, OperationId, OperationKind, OperationScope, OutboxAudit as _, Selection};
use outbox::nats::JetStreamPublisher;
use serde::Serialize;
use time::OffsetDateTime;

use super::arguments::{PlaceArguments, parse_duration};
use super::intent::MakeArguments;
use super::outcome::say_operation;
use super::place::Place;
use super::relay::log::undecided_between;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, say};

/// Arguments of `outbox reconcile`.
#[derive(Debug, Clone, Args)]
pub struct ReconcileCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Compare messages recorded since this time: `2d` ago, a date, or a time by RFC 3339. Start
    /// after messages that left the stream by design (`max_age`, a purge): they look lost.
    #[arg(long, value_name = "TIME", value_parser = input::time)]
    pub since: OffsetDateTime,
    /// Compare messages recorded before this time. Messages published meanwhile may look lost, and
    /// are sent again.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = input::time)]
    pub until: OffsetDateTime,
    /// The shortest `InboxConfig::retention` of all consumers. Older messages would be applied
    /// twice, so an earlier span is rejected. `forever` if all consumers keep sequences.
    #[arg(long, value_name = "DURATION", default_value = "15d", value_parser = parse_memory)]
    pub consumers_remember: Duration,
    /// Change options.
    #[command(flatten)]
    pub make: MakeArguments,
}

fn parse_memory(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(Duration::MAX),
        _ => parse_duration(text),
    }
}

impl ReconcileCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let span = Span {
            from: self.since,
            until: self.until,
        };
        if span.from >= span.until {
            return Err(CommandError::configuration(
                "the span is empty: `--since` is not before `--until`, which is ten minutes ago if it is not given",
            ));
        }
        let place = Place::open_to_change(&self.place).await?;
        let publisher = place.publisher().await.map_err(CommandError::failed)?;
        let missing = async {
            let missing = reconcile::missing(&place.store, &publisher, span);
            place.carry_out(missing).await
        };
        let (found, operation) = if self.make.yes {
            let count = async { Ok(missing.await?.missing) };
            self.make.confirm.check(&place, count).await?;
            let (found, operation) = self.publish(&place, &publisher, span).await?;
            (found, Some(operation))
        } else {
            (missing.await?, None)
        };
        let left_out = undecided_between(&place, span.from, span.until).await?;
        let report = Reconciliation {
            left_out,
            ..Reconciliation::of(found, span, operation)
        };
        output::one(self.place.output, &report)?;
        if let Some(operation) = operation {
            say_operation(operation);
        }
        Ok(report.outcome())
    }

    async fn publish(
        &self,
        place: &Place,
        publisher: &JetStreamPublisher,
        span: Span,
    ) -> Result<(Reconciled, OperationId), CommandError> {
        // Publishing is outside any transaction. A crash leaves an unfinished operation.
        let scope = Selection::all()
            .recorded_from(span.from)
            .recorded_until(span.until);
        let scope = OperationScope::messages(scope);
        let begun = Operation::new(OperationKind::Reconcile, scope, self.make.intent.intent());
        place.ask(place.store.write_down(&begun)).await?;
        let found =
            reconcile::reconcile(&place.store, publisher, publisher, span, self.consumers_remember).await;
        if matches!(found, Err(ReconcileError::Forgotten { .. })) {
            place.ask(place.store.finish(begun.id, 0)).await?;
        }
        let found = place.carry_out(std::future::ready(found)).await?;
        place.ask(place.store.finish(begun.id, found.published)).await?;
        Ok((found, begun.id))
    }
}

#[derive(Debug, Serialize)]
struct Reconciliation {
    since: String,
    until: String,
    compared: u64,
    missing: u64,
    applied: bool,
    published: u64,
    /// Missing messages that the stream dropped as duplicates.
    dropped: u64,
    /// Operation id, if anything was published.
    operation: Option<String>,
    /// Messages beyond the log position, not compared; at most 1,000,000.
    left_out: u64,
}

impl Reconciliation {
    fn of(found: Reconciled, span: Span, operation: Option<OperationId>) -> Self {
        Self {
            since: text::time(span.from),
            until: text::time(span.until),
            compared: found.compared,
            missing: found.missing,
            applied: operation.is_some(),
            published: found.published,
            dropped: found.dropped,
            operation: operation.map(|id| id.to_string()),
            left_out: 0,
        }
    }

    fn outcome(&self) -> Outcome {
        if self.left_out > 0 {
            say("logged messages after the log position may be unpublished; re-run, or see `outbox status`");
        }
        if self.compared == 0 && self.left_out > 0 {
            return Outcome::NothingMatched;
        }
        if self.compared == 0 {
            say("the outbox has no published message of this span; it may be older than `retention`");
            return Outcome::NothingMatched;
        }
        if self.missing > 0 && !self.applied {
            say("nothing was published; re-run with `--yes`");
            return Outcome::Degraded;
        }
        if self.dropped > 0 {
            say(
                "the server rejected messages as duplicates that the stream lacks; re-run after the duplicate window",
            );
            return Outcome::Degraded;
        }
        Outcome::Done
    }
}

impl Print for Reconciliation {
    fn text(&self) -> String {
        let mut text = format!(
            "{} recorded from {} to {}; the stream lacks {} of them\n",
            text::counted(self.compared, "published message", "published messages"),
            self.since,
            self.until,
            self.missing
        );
        if self.left_out > 0 {
            let _ = writeln!(
                text,
                "{} not compared",
                text::counted(self.left_out, "logged message was", "logged messages were")
            );
        }
        if self.applied && self.missing > 0 {
            let _ = writeln!(
                text,
                "{} are published again, {} were dropped as duplicates",
                self.published, self.dropped
            );
        }
        text
    }
}
