//! `outbox status`: health of every outbox in the file, with next commands.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use outbox_admin::doctor::StreamFacts;
use outbox_admin::{BacklogCounts, BrokerCheck, ConsumerRow, Forecast, State, Status, answered};
use serde::Serialize;

use super::arguments::{ForecastArguments, PlaceArguments};
use super::place::Place;
use super::relay::log;
use super::relay::log_row::LogRow;
use super::{doctor, foresee, stream, text};
use crate::failure::{CommandError, Outcome};
use crate::invocation;
use crate::output::{self, Print, plain, say};

const CONSUMERS_MAX: Duration = Duration::from_secs(5);

const RATE_OVER: Duration = Duration::from_secs(2);

/// Arguments of `outbox status`.
#[derive(Debug, Clone, Args)]
pub struct StatusCommand {
    /// The outbox; all of the file, unless one is named.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Forecast option.
    #[command(flatten)]
    pub forecast: ForecastArguments,
}

impl StatusCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let (mut rows, mut failure) = (Vec::new(), None);
        for place in Place::open_all(&self.place).await? {
            let Look {
                broker,
                stream,
                consumers,
            } = look(&place).await;
            let mut status = match place.ask(outbox_admin::status(&place.store, &broker)).await {
                Ok(status) => status,
                Err(error) => {
                    if let Some(earlier) = failure.replace(error) {
                        say(&format!("error: {earlier}"));
                    }
                    continue;
                }
            };
            if let Some(stream) = &stream {
                status.see_stream(stream);
            }
            if status.relays.alive == 0 && doctor::only_reads(&place).await {
                let what = "new sessions of the database only read (`default_transaction_read_only` or \
                            `read_only` is on), so no relay renews its leases";
                status.add_cause(State::Stuck, what, "outbox doctor");
            }
            let consumers_unseen = match consumers {
                Ok((rows, unseen)) => {
                    status.see_consumers(&rows);
                    unseen.or_else(|| stream::unseen(&rows))
                }
                Err(error) => Some(error),
            };
            let log = log::of_status(&place).await;
            if let Some(next) = log.as_ref().and_then(|log| log.next.as_ref()) {
                status.add(next.state, next.what.as_str(), next.next.clone());
            }
            let mut forecast = self.forecast;
            if !status.backlog.pending_is_exact {
                forecast.forecast.get_or_insert(RATE_OVER);
            }
            let forecast = foresee::foresee(&place, forecast).await?;
            rows.push(StatusRow {
                outbox: place.outbox.name().to_owned(),
                stream: place.outbox.section.stream.name.clone(),
                status,
                log,
                forecast,
                consumers_unseen,
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
        Ok(worst.unwrap_or(State::Healthy).into())
    }
}

struct Look {
    broker: BrokerCheck,
    stream: Option<StreamFacts>,
    /// Consumers, and why dead letters and pauses are unknown; or why all consumers are unknown.
    consumers: Result<(Vec<ConsumerRow>, Option<String>), String>,
}

async fn look(place: &Place) -> Look {
    let broker = place.broker().await;
    let unknown = |broker, error: &str| Look {
        broker,
        stream: None,
        consumers: Err(error.to_owned()),
    };
    if !matches!(broker, BrokerCheck::Checked(_)) {
        return unknown(broker, "the stream was not found, or nats does not answer");
    }
    let client = match place.client().await {
        Ok(client) => client,
        Err(error) => return unknown(broker, &error.to_string()),
    };
    let filled = answered(place.timeout, stream::filled(place, client.clone())).await;
    // NATS does not answer a login without the right.
    let bound = place.timeout.min(CONSUMERS_MAX) + stream::WATCHED_MAX;
    let consumers = async {
        let watched = stream::watched(place, client).await;
        watched.map_err(|error| error.to_string())
    };
    let consumers = answered(bound, consumers).await;
    Look {
        broker,
        stream: filled.ok(),
        consumers,
    }
}

pub(super) fn sentence(outbox: &str, stream: &str, state: State) -> String {
    format!("{outbox} -> {stream}: {state}")
}

#[derive(Debug, Serialize)]
struct StatusRow {
    outbox: String,
    stream: String,
    #[serde(flatten)]
    status: Status,
    /// The log's state; `null` without a log.
    log: Option<LogRow>,
    /// Forecast; `null` unless requested.
    forecast: Option<Forecast>,
    /// Consumer facts that could not be read; `null` if complete.
    consumers_unseen: Option<String>,
}

impl StatusRow {
    fn name_outbox(&mut self) {
        for reason in &mut self.status.reasons {
            invocation::name_outbox(&mut reason.next, &self.outbox);
        }
        for prospect in self
            .forecast
            .iter_mut()
            .flat_map(|forecast| &mut forecast.prospects)
        {
            invocation::name_outbox(&mut prospect.next, &self.outbox);
        }
    }
}

impl Print for StatusRow {
    fn text(&self) -> String {
        let Status {
            state,
            reasons,
            backlog,
            relays,
            partitions,
            consumers,
            ..
        } = &self.status;
        let mut text = sentence(&self.outbox, &self.stream, *state);
        text.push('\n');
        for reason in reasons {
            let _ = writeln!(text, "  {:<8}  {}", reason.state, plain(&reason.what));
            text.push_str(&output::next_lines(&reason.next, "            "));
        }
        let oldest = backlog.oldest_unpublished.map(text::duration);
        let _ = writeln!(
            text,
            "messages    pending {}, of which deferred {}, oldest due {}, dead letters {}",
            backlog.pending_text(),
            BacklogCounts::text(backlog.deferred),
            oldest.unwrap_or_else(|| "-".to_owned()),
            BacklogCounts::text(backlog.dead_letters)
        );
        let _ = writeln!(
            text,
            "aggregates  blocked {}, of which halted {}",
            BacklogCounts::text(backlog.blocked_aggregates),
            BacklogCounts::text(backlog.halted_aggregates)
        );
        let _ = writeln!(
            text,
            "relays      alive {}: healthy {}, unknown {}, recovering {}, unhealthy {}; partitions owned {} of {}",
            relays.alive,
            relays.healthy,
            relays.unknown,
            relays.recovering,
            relays.unhealthy,
            partitions.owned,
            partitions.all
        );
        if let Some(consumers) = consumers {
            let not_checked = || "not checked".to_owned();
            let paused = consumers.paused.map(|paused| paused.to_string());
            let letters = consumers.dead_letters_open.map(|open| open.to_string());
            let _ = writeln!(
                text,
                "consumers   {}: healthy {}, paused {}, open dead letters {}",
                consumers.all,
                consumers.healthy,
                paused.unwrap_or_else(not_checked),
                letters.unwrap_or_else(not_checked)
            );
        }
        if let Some(unseen) = &self.consumers_unseen {
            let _ = writeln!(text, "not checked consumers: {}", plain(unseen));
        }
        if let Some(log) = &self.log {
            let _ = writeln!(text, "{}", log.line());
        }
        if let Some(forecast) = &self.forecast {
            text.push_str(&foresee::lines(forecast));
        }
        text
    }
}
