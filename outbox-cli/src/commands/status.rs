//! `outbox status`: how each outbox of the file stands, and the next command for what is wrong.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use outbox_admin::{BrokerCheck, Forecast, State, Status, StreamUse};
use serde::Serialize;

use super::arguments::{ForecastArguments, PlaceArguments};
use super::log;
use super::log_row::LogRow;
use super::place::Place;
use super::{foresee, stream, text};
use crate::failure::{CommandError, Outcome};
use crate::hint;
use crate::output::{self, Column, Print, plain, say};

/// Arguments of `outbox status`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct StatusCommand {
    /// The outbox; all of the file, unless one is named.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Whether to look twice.
    #[command(flatten)]
    pub forecast: ForecastArguments,
}

impl StatusCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let (mut rows, mut failure) = (Vec::new(), None);
        for place in Place::open_all(&self.place).await? {
            let (broker, stream) = look(&place).await;
            let mut status = match place.ask(outbox_admin::status(&place.store, &broker)).await {
                Ok(status) => status,
                // The others may have something to say, too.
                Err(error) => {
                    if let Some(CommandError::Configuration(earlier) | CommandError::Failed(earlier)) =
                        failure.replace(error)
                    {
                        say(&format!("error: {earlier:?}"));
                    }
                    continue;
                }
            };
            if let Some(stream) = &stream {
                status.see_stream(stream);
            }
            if status.relays.fit == 0 && place_only_reads(&place).await {
                let what = "the database only reads: it is a standby, or `default_transaction_read_only` or `read_only` is on, so no relay renews its leases";
                status.add_cause(State::Stuck, what, "outbox doctor");
            }
            let log = log::of_status(&place).await;
            if let Some(next) = log.as_ref().and_then(|log| log.next.as_ref()) {
                status.add(next.state, next.what.as_str(), next.next.clone());
            }
            let forecast = foresee::foresee(&place, self.forecast).await?;
            rows.push(StatusRow {
                alerts: alerts(&status),
                outbox: place.outbox.name().to_owned(),
                stream: place.outbox.section.stream.name.clone(),
                status,
                log,
                forecast,
            });
        }
        if rows.len() > 1 || failure.is_some() {
            rows.iter_mut().for_each(StatusRow::name_outbox);
        }
        output::many(self.place.output, &rows)?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let worst = rows.iter().map(|row| row.status.state).max();
        Ok(worst.unwrap_or(State::Well).into())
    }
}

/// Whether the database takes no writes from anybody. An error is no proof of that.
async fn place_only_reads(place: &Place) -> bool {
    let asked = outbox_admin::doctor::only_reads(place.store.connection());
    matches!(tokio::time::timeout(place.timeout, asked).await, Ok(Ok(true)))
}

/// Whether the stream takes messages, and how it is filled. A stream that cannot be asked is not asked twice.
async fn look(place: &Place) -> (BrokerCheck, Option<StreamUse>) {
    let broker = place.broker().await;
    if !matches!(broker, BrokerCheck::Checked(_)) {
        return (broker, None);
    }
    let Ok(client) = place.client().await else {
        return (broker, None);
    };
    let filled = tokio::time::timeout(place.timeout, stream::bounds(place, client)).await;
    (broker, filled.ok().and_then(Result::ok))
}

/// The first line: which outbox, and how it stands.
pub(super) fn sentence(outbox: &str, stream: &str, state: State) -> String {
    format!("{outbox} -> {stream}: {}", state.as_str())
}

#[derive(Debug, Serialize)]
struct StatusRow {
    outbox: String,
    stream: String,
    #[serde(flatten)]
    status: Status,
    /// `null` without a log.
    log: Option<LogRow>,
    /// `null` unless it was asked for.
    forecast: Option<Forecast>,
    /// The alerts of `outbox print alerts` that fire if it stays like this, as far as one look can tell.
    alerts: Vec<&'static str>,
}

impl StatusRow {
    /// Lets the commands that come next name the outbox.
    fn name_outbox(&mut self) {
        for reason in &mut self.status.reasons {
            hint::name_outbox(&mut reason.next, &self.outbox);
        }
        for prospect in self
            .forecast
            .iter_mut()
            .flat_map(|forecast| &mut forecast.prospects)
        {
            hint::name_outbox(&mut prospect.next, &self.outbox);
        }
    }
}

/// The alerts whose conditions are met now, of those that look at a value of this moment and not at a rate.
fn alerts(status: &Status) -> Vec<&'static str> {
    let (backlog, relays, partitions) = (&status.backlog, &status.relays, &status.partitions);
    let is_late = backlog
        .oldest_pending
        .is_some_and(|age| age > Duration::from_secs(60));
    let met = [
        ("OutboxMessagesAreLate", is_late),
        ("OutboxDeadLetters", backlog.dead_letters > 0),
        ("OutboxAggregatesHalted", backlog.halted_aggregates > 0),
        ("OutboxPartitionsWithoutRelay", partitions.owned < partitions.all),
        ("OutboxRelayIsAiling", relays.ailing > 0),
    ];
    met.into_iter()
        .filter_map(|(alert, is_met)| is_met.then_some(alert))
        .collect()
}

impl Print for StatusRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("outbox", |row| row.outbox.clone()),
        Column::new("state", |row| row.status.state.as_str().to_owned()),
        Column::new("pending", |row| row.status.backlog.pending.to_string()),
        Column::new("waiting", |row| row.status.backlog.waiting.to_string()),
        Column::new("oldest", |row| {
            text::any(row.status.backlog.oldest_pending.map(text::duration))
        }),
        Column::new("dead", |row| row.status.backlog.dead_letters.to_string()),
        Column::new("halted", |row| row.status.backlog.halted_aggregates.to_string()),
        Column::new("relays", |row| row.status.relays.alive.to_string()),
        Column::new("partitions", |row| row.status.partitions.owned.to_string()),
        Column::wide("blocked", |row| row.status.backlog.blocked_aggregates.to_string()),
        Column::wide("stream", |row| row.stream.clone()),
        Column::wide("reasons", |row| {
            let reasons = row.status.reasons.iter().map(|reason| reason.what.as_str());
            reasons.collect::<Vec<_>>().join("; ")
        }),
    ];

    fn name(&self) -> String {
        self.outbox.clone()
    }

    fn text(&self) -> Option<String> {
        let Status {
            state,
            reasons,
            backlog,
            relays,
            partitions,
            ..
        } = &self.status;
        let mut text = sentence(&self.outbox, &self.stream, *state);
        text.push('\n');
        // Writing to a `String` does not fail.
        for reason in reasons {
            let _ = writeln!(text, "  {:<8}  {}", reason.state.as_str(), plain(&reason.what));
            text.push_str(&hint::lines(&reason.next, "            "));
        }
        let oldest = backlog.oldest_pending.map(text::duration);
        let _ = writeln!(
            text,
            "messages    pending {}, of these waiting {}, oldest {}, dead letters {}",
            backlog.pending,
            backlog.waiting,
            oldest.unwrap_or_else(|| "-".to_owned()),
            backlog.dead_letters
        );
        let _ = writeln!(
            text,
            "aggregates  blocked {}, of these halted {}",
            backlog.blocked_aggregates, backlog.halted_aggregates
        );
        let _ = writeln!(
            text,
            "relays      alive {}: fit {}, unproven {}, trying {}, ailing {}; partitions owned {} of {}",
            relays.alive,
            relays.fit,
            relays.unproven,
            relays.trying,
            relays.ailing,
            partitions.owned,
            partitions.all
        );
        if let Some(log) = &self.log {
            let _ = writeln!(text, "{}", log.line());
        }
        if let Some(forecast) = &self.forecast {
            text.push_str(&foresee::lines(forecast));
        }
        if !self.alerts.is_empty() {
            let _ = writeln!(
                text,
                "alerts      if it stays like this: {}",
                self.alerts.join(", ")
            );
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use outbox::core::testing::MemoryStore;

    use super::*;

    const RULES: &str = include_str!("../../../docs/monitoring/alerts.yml");

    /// The condition of a rule.
    fn condition(alert: &str) -> &'static str {
        let (_, rule) = RULES.split_once(&format!("- alert: {alert}\n")).unwrap();
        rule.lines()
            .next()
            .unwrap()
            .trim()
            .strip_prefix("expr: ")
            .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_alerts_that_would_fire_are_those_of_the_rules() {
        let mut status = outbox_admin::status(&MemoryStore::new(), &BrokerCheck::NotAsked)
            .await
            .unwrap();
        assert_eq!(alerts(&status), ["OutboxPartitionsWithoutRelay"]);
        status.partitions.owned = status.partitions.all;
        assert!(alerts(&status).is_empty());
        status.backlog.oldest_pending = Some(Duration::from_secs(61));
        status.backlog.dead_letters = 1;
        status.backlog.halted_aggregates = 1;
        status.partitions.owned -= 1;
        status.relays.ailing = 1;
        let conditions = alerts(&status).into_iter().map(condition);
        assert_eq!(
            conditions.collect::<Vec<_>>(),
            [
                "max by (job) (outbox_oldest_pending_age_seconds) > 60",
                "max by (job) (outbox_dead_letters) > 0",
                "max by (job) (outbox_halted_aggregates) > 0",
                "sum by (job) (outbox_leases_owned) < 64",
                "max by (job) (outbox_relays_ailing) > 0",
            ]
        );
    }
}
