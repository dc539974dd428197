//! `outbox status`: health of every outbox in the file, with next commands.

use std::fmt::Write as _;
use std::time::Duration;

use crate::admin::{BacklogCounts, BrokerCheck, Forecast, State, Status, StreamView as _, answered};
use clap::Args;
use outbox::core::OutboxStore as _;
use serde::Serialize;
use tokio::time::Instant;

use super::arguments::PlaceArguments;
use super::place::Place;
use super::relay::log;
use super::relay::log_row::LogRow;
use super::sessions::Sessions;
use super::stream_view::Stream;
use super::{doctor, stream, text};
use crate::failure::{CommandError, Outcome};
use crate::invocation;
use crate::output::{self, Print, plain, say};

const CONSUMERS_MAX: Duration = Duration::from_secs(5);

/// Least time between two counts of a large backlog.
const RATE_OVER: Duration = Duration::from_secs(2);

/// Arguments of `outbox status`.
#[derive(Debug, Clone, Args)]
pub struct StatusCommand {
    /// The outbox to check; without `--outbox`, all outboxes of the file.
    #[command(flatten)]
    pub place: PlaceArguments,
}

impl StatusCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let (mut rows, mut failure) = (Vec::new(), None);
        for place in Place::open_all(&self.place, Sessions::Reading).await? {
            let stream = Stream::new(&place, &self.place.file);
            let broker = stream.broker().await;
            let mut status = match place.ask(crate::admin::status(&place.store, &broker)).await {
                Ok(status) => status,
                Err(error) => {
                    if let Some(earlier) = failure.replace(error) {
                        say(&format!("error: {earlier}"));
                    }
                    continue;
                }
            };
            let counted = Instant::now();
            let mut consumers = Err("the stream was not found, or nats does not answer".to_owned());
            if let BrokerCheck::Checked(_) = broker {
                if let Ok(Some(stream)) = answered(place.timeout, stream.filled()).await {
                    status.see_stream(&stream);
                }
                // NATS does not answer a login without the right.
                let bound = place.timeout.min(CONSUMERS_MAX) + stream::WATCHED_MAX;
                consumers = answered(bound, stream.watched()).await;
            }
            if status.relays.alive == 0 && doctor::only_reads(&place).await {
                let what = "new sessions of the database only read (`default_transaction_read_only` or \
                            `read_only` is on), so no relay renews its leases";
                status.add_cause(State::Stuck, what, "outbox doctor");
            }
            let consumers_unseen = match consumers {
                Ok(rows) => {
                    status.see_consumers(&rows);
                    stream::unseen(&rows)
                }
                Err(error) => Some(error),
            };
            let log = log::row_of(&place).await.unwrap_or_else(|failure| {
                say(&format!("the log was not checked: {failure}"));
                None
            });
            if let Some(next) = log.as_ref().and_then(|log| log.next.as_ref()) {
                status.add(next.state, next.what.as_str(), next.next.clone());
            }
            let forecast = forecast(&place, &status.backlog, counted).await?;
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

/// Counts a backlog again that is too large for an exact count, to see its rate.
async fn forecast(
    place: &Place,
    earlier: &BacklogCounts,
    counted: Instant,
) -> Result<Option<Forecast>, CommandError> {
    if earlier.pending_is_exact {
        return Ok(None);
    }
    tokio::time::sleep_until(counted + RATE_OVER).await;
    let now = place.ask(place.store.backlog()).await?.into();
    Ok(Forecast::of_backlog(earlier, &now, counted.elapsed()))
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
    /// Forecast of a backlog beyond 100,000 messages; `null` for an exact count.
    forecast: Option<Forecast>,
    /// Consumer facts that could not be read; `null` if complete.
    consumers_unseen: Option<String>,
}

impl StatusRow {
    fn name_outbox(&mut self) {
        for reason in &mut self.status.reasons {
            invocation::name_outbox(&mut reason.next, &self.outbox);
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
        if let Some(forecast) = &self.forecast {
            let _ = writeln!(text, "            {}", plain(&forecast.what));
        }
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
        text
    }
}
