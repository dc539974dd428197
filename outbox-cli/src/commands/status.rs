//! `outbox status`: how each outbox of the file stands, and the next command for what is wrong.

use std::fmt::Write as _;

use clap::Args;
use outbox_admin::{State, Status};
use serde::Serialize;

use super::arguments::PlaceArguments;
use super::log::{self, LogRow};
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Print, plain, say};

/// Arguments of `outbox status`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct StatusCommand {
    /// The outbox; all of the file, unless one is named.
    #[command(flatten)]
    pub place: PlaceArguments,
}

impl StatusCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let (mut rows, mut failure) = (Vec::new(), None);
        for place in Place::open_all(&self.place).await? {
            let broker = place.broker().await;
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
            let log = log::of_status(&place).await;
            if let Some(next) = log.as_ref().and_then(|log| log.next.as_ref()) {
                status.add(next.state, next.what.as_str(), next.next);
            }
            rows.push(StatusRow {
                outbox: place.outbox.name().to_owned(),
                stream: place.outbox.section.stream.name.clone(),
                status,
                log,
            });
        }
        output::many(self.place.output, &rows)?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let worst = rows.iter().map(|row| row.status.state).max();
        Ok(worst.unwrap_or(State::Well).into())
    }
}

#[derive(Debug, Serialize)]
struct StatusRow {
    outbox: String,
    stream: String,
    #[serde(flatten)]
    status: Status,
    /// `null` without a log.
    log: Option<LogRow>,
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
        let mut text = format!("{} -> {}: {}\n", self.outbox, self.stream, state.as_str());
        // Writing to a `String` does not fail.
        for reason in reasons {
            let _ = writeln!(text, "  {:<8}  {}", reason.state.as_str(), plain(&reason.what));
            let _ = writeln!(text, "            next: {}", plain(&reason.next));
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
        Some(text)
    }
}
