//! `outbox timeline`: history of an aggregate's events, from the inboxes of all outboxes in the
//! file with the same stream.

use std::fmt::Write as _;

use crate::admin::{Command, Timeline, input};
use clap::Args;
use outbox::core::{Aggregate, Selection};
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
        let stream = Stream::new(&place, &self.place.file);
        timeline.follow(&place.store, &stream, place.timeout).await;
        output::one(self.place.output, &timeline)?;
        if timeline.events.is_empty() {
            say_next(Command::from("outbox why").arg(&self.aggregate));
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Done)
    }
}

impl Print for Timeline {
    fn text(&self) -> String {
        let held = text::counted(
            self.events.len().try_into().unwrap_or(u64::MAX),
            "event",
            "events",
        );
        let name = format!("{}/{}", self.aggregate_type, self.aggregate_id);
        let mut text = match self.last_sequence {
            Some(last) => format!("{}: last sequence {last}; {held} in the outbox\n", plain(&name)),
            None => format!("{}: {held} in the outbox\n", plain(&name)),
        };
        if !self.events.is_empty() {
            text.push_str(&output::table(&self.events));
        }
        for event in self.events.iter().filter(|event| event.is_not_on_stream) {
            let why = Command::from("outbox why").arg(event.row.id);
            let _ = writeln!(text, "not on the stream: {}", event.row.id);
            text.push_str(&output::next_line(&why, "  "));
        }
        for hole in &self.holes {
            let _ = writeln!(
                text,
                "no row: {}; it was deleted; unknown: whether the event was published",
                hole.numbers()
            );
        }
        if !self.is_complete {
            text.push_str("there are more; `--since` begins later, `--limit` shows more\n");
        }
        for unseen in &self.unseen {
            let _ = writeln!(text, "not checked: {}", plain(unseen));
        }
        text
    }
}
