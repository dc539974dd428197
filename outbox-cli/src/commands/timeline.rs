//! `outbox timeline`: history of an aggregate's events. Reads the inboxes of all outboxes in the
//! file with the same stream.
//!
//! Invariant: reads only.

use std::fmt::Write as _;

use clap::Args;
use outbox::core::{Aggregate, Selection};
use outbox_admin::{Command, Effect, Timeline, TimelineEvent, input};
use time::OffsetDateTime;

use super::arguments::{LimitArguments, PlaceArguments};
use super::place::Place;
use super::stream_view::Stream;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, plain, say_next};

/// Arguments of `outbox timeline`.
#[derive(Debug, Clone, Args)]
pub struct TimelineCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The aggregate, such as `order/4711`.
    #[arg(value_name = "TYPE/ID", value_parser = input::aggregate)]
    pub aggregate: Aggregate,
    /// Only events recorded since this time: `2h` ago, a date, or a time by RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = input::time)]
    pub since: Option<OffsetDateTime>,
    /// How many.
    #[command(flatten)]
    pub limit: LimitArguments,
}

impl TimelineCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let selection = match self.since {
            Some(since) => Selection::all().recorded_from(since),
            None => Selection::all(),
        };
        let reading = Timeline::of(&place.store, &self.aggregate, selection, self.limit.limit);
        let mut timeline = place.ask(reading).await?;
        let stream = Stream::new(&place, &self.place);
        timeline.follow(&place.store, &stream, place.timeout).await;
        output::one(self.place.output, &timeline)?;
        if timeline.events.is_empty() {
            say_next(Command::from("outbox why").arg(&self.aggregate));
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Well)
    }
}

fn since(event: &TimelineEvent, time: OffsetDateTime) -> String {
    let seconds = (time - event.row.recorded_at).as_seconds_f64();
    format!("{seconds:+.3}s")
}

fn of_effect(event: &TimelineEvent, effect: &Effect) -> String {
    let mut text = effect.outcome.to_string();
    if let Some(at) = effect.at {
        let _ = write!(text, " {}", since(event, at));
    }
    if let Some(error) = &effect.error {
        let attempts = text::counted(effect.attempts, "failed attempt", "failed attempts");
        let _ = write!(text, " after {attempts}: {error}");
    }
    text
}

impl Print for Timeline {
    fn text(&self) -> Option<String> {
        let held = text::counted(
            self.events.len().try_into().unwrap_or(u64::MAX),
            "event",
            "events",
        );
        let name = format!("{}/{}", self.aggregate_type, self.aggregate_id);
        let mut text = match self.last_sequence {
            Some(last) => format!(
                "{}: its last number is {last}; {held} in the outbox\n",
                plain(&name)
            ),
            None => format!("{}: {held} in the outbox\n", plain(&name)),
        };
        for event in &self.events {
            let number = event
                .row
                .sequence
                .map(|sequence| format!("#{sequence} "))
                .unwrap_or_default();
            let _ = writeln!(
                text,
                "{} {number}{} {}",
                text::time(event.row.recorded_at),
                plain(&event.row.event_type),
                event.row.id
            );
            let published = event
                .row
                .published_at
                .map(|time| format!(" {}", since(event, time)));
            let _ = writeln!(
                text,
                "    {}{}",
                event.row.status.as_str(),
                published.unwrap_or_default()
            );
            if let Some(error) = &event.row.error {
                let _ = writeln!(text, "    error: {}", plain(error));
            }
            if let Some(stream_sequence) = event.stream_sequence {
                let _ = writeln!(text, "    on the stream: {stream_sequence}");
            }
            if event.is_not_on_stream {
                text.push_str("    not on the stream\n");
                text.push_str(&output::next_line(
                    &Command::from("outbox why").arg(event.row.id),
                    "      ",
                ));
            }
            for effect in &event.effects {
                let _ = writeln!(
                    text,
                    "    {}: {}",
                    plain(&effect.consumer),
                    plain(&of_effect(event, effect))
                );
            }
        }
        for hole in &self.holes {
            let _ = writeln!(
                text,
                "no row: {}; it was deleted; not known: whether the event was published before",
                hole.numbers()
            );
        }
        if !self.is_complete {
            text.push_str("there are more; `--since` begins later, `--limit` shows more\n");
        }
        for unseen in &self.unseen {
            let _ = writeln!(text, "not seen: {}", plain(unseen));
        }
        Some(text)
    }
}
