//! `outbox tail`: follows what is recorded and what becomes of it, until it is interrupted.
//!
//! Messages are read in the order of their ids, which every database has an index for. Ids are not the order of commits: a transaction that is open for a while
//! commits rows whose ids others have passed, and so does a writer whose clock is behind. So each look also reads again what
//! it has seen within `--window`, and prints what is new there, or has another status. Invariants: nothing is changed or received; a message is printed once
//! for each status; memory is bounded by the rows of the window, at most 10,000 rows.

mod cursor;

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use clap::Args;
use outbox::core::{Aggregate, MessageId, PageFrom, Selection, shutdown};
use outbox_admin::MessageRow;
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use super::arguments::{PlaceArguments, StatusArgument, parse_aggregate, parse_duration, parse_time};
use super::place::Place;
use crate::failure::{CommandError, Outcome};
use crate::output::{Format, Stream, say};
use cursor::Cursor;

/// Rows of a page.
const PAGE: NonZeroU32 = NonZeroU32::new(1_000).unwrap();
/// Most rows that are read again in a look.
const WINDOW_ROWS: usize = 10_000;
/// Waits between two looks: the first after something was found, doubled up to the second while nothing is.
const WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// Arguments of `outbox tail`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct TailCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Only messages of this event type, such as `order.placed`; `*` stands for any text, as in `order.*`.
    #[arg(long = "type", value_name = "EVENT")]
    pub event_type: Option<String>,
    /// Only messages of this aggregate, such as `order/4711`.
    #[arg(long, value_name = "TYPE/ID", value_parser = parse_aggregate)]
    pub aggregate: Option<Aggregate>,
    /// Only messages that have this status when they are looked at.
    #[arg(long, value_enum)]
    pub status: Option<StatusArgument>,
    /// Begin with messages that were recorded at this time or later: `2h` ago, a date, or a time by RFC 3339. Without it, only what is recorded from now on is printed.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub since: Option<OffsetDateTime>,
    /// How long a message is looked at again after it was first seen. What is committed later than this after later rows, and what becomes of a message
    /// afterwards, is not printed. At most 10,000 messages are looked at again.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub window: Duration,
    /// End after so many lines.
    #[arg(long, value_name = "N")]
    pub limit: Option<NonZeroU64>,
    /// End when a look finds nothing new.
    #[arg(long)]
    pub until_idle: bool,
}

impl TailCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        if self.place.output == Format::Json {
            return Err(CommandError::configuration(
                "an array of JSON has an end, and `tail` has none; use `-o jsonl`",
            ));
        }
        let stop = shutdown::on_signals();
        let place = Place::open(&self.place).await?.reading(1).await?;
        let mut follower = Follower {
            cursor: Cursor::new(WINDOW_ROWS, MessageId::from(Uuid::nil())),
            stream: Stream::new(self.place.output),
            printed: 0,
            command: self,
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(Outcome::Well),
            begun = follower.begin(&place) => begun?,
        }
        let mut wait = WAIT.0;
        loop {
            let has_ended = tokio::select! {
                () = stop.cancelled() => return Ok(Outcome::Well),
                looked = follower.look(&place) => looked?,
            };
            let found = match has_ended {
                Round::Ended => return Ok(Outcome::Well),
                Round::Found => true,
                Round::Idle => false,
            };
            if !found && follower.command.until_idle {
                return Ok(follower.outcome());
            }
            wait = if found { WAIT.0 } else { (wait * 2).min(WAIT.1) };
            tokio::select! {
                () = stop.cancelled() => return Ok(Outcome::Well),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn is_wanted(&self, row: &MessageRow) -> bool {
        let is_of = |aggregate: &Aggregate| {
            aggregate.aggregate_type == row.aggregate_type && aggregate.id == row.aggregate_id
        };
        self.event_type
            .as_ref()
            .is_none_or(|pattern| matches(pattern, &row.event_type))
            && self.aggregate.as_ref().is_none_or(is_of)
            && self.since.is_none_or(|since| row.recorded_at >= since)
            && self.status.is_none_or(|status| row.status == status.into())
    }
}

/// How a look ended.
enum Round {
    /// It printed something.
    Found,
    /// It printed nothing.
    Idle,
    /// The lines are enough, or nobody reads them.
    Ended,
}

struct Follower {
    command: TailCommand,
    cursor: Cursor<MessageId>,
    stream: Stream<MessageRow>,
    printed: u64,
}

impl Follower {
    /// Finds where to begin. What is there already is noted and not printed, unless `--since` asks for it.
    async fn begin(&mut self, place: &Place) -> Result<(), CommandError> {
        if let Some(since) = self.command.since {
            self.cursor.begin(first_id_of(since));
            return Ok(());
        }
        // The neighbours of the newest rows may not be committed yet.
        let rows = page(place, PageFrom::Newest).await?;
        if let Some(oldest) = rows.last().filter(|_| rows.len() == PAGE.get() as usize) {
            self.cursor.begin(oldest.id);
        }
        for row in rows {
            self.cursor.see(row.id, row.status, Instant::now());
        }
        Ok(())
    }

    /// Reads the window again, and everything behind it.
    async fn look(&mut self, place: &Place) -> Result<Round, CommandError> {
        let mut after = self.cursor.floor();
        let before = self.printed;
        loop {
            let rows = page(place, PageFrom::After(after)).await?;
            let is_last = rows.len() < PAGE.get() as usize;
            after = rows.last().map_or(after, |row| row.id);
            let now = Instant::now();
            for row in rows {
                if !self.cursor.see(row.id, row.status, now) || !self.command.is_wanted(&row) {
                    continue;
                }
                if !self.stream.push(&row)? {
                    return Ok(Round::Ended);
                }
                self.printed += 1;
                if self
                    .command
                    .limit
                    .is_some_and(|limit| self.printed >= limit.get())
                {
                    return Ok(Round::Ended);
                }
            }
            // After each page, or a look back over a long time would remember each row of it.
            self.cursor.forget(self.command.window, now);
            if is_last {
                break;
            }
        }
        Ok(if self.printed > before {
            Round::Found
        } else {
            Round::Idle
        })
    }

    fn outcome(&self) -> Outcome {
        if self.printed == 0 {
            say("no message matches");
            return Outcome::NothingMatched;
        }
        Outcome::Well
    }
}

/// A page of all messages: filters are applied to what was read, so that a look costs the same whatever they let through.
async fn page(place: &Place, from: PageFrom) -> Result<Vec<MessageRow>, CommandError> {
    let selection = Selection::all();
    place
        .ask(outbox_admin::page(&place.store, &selection, from, PAGE))
        .await
}

/// The smallest id that is made at a time.
fn first_id_of(time: OffsetDateTime) -> MessageId {
    let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
    let millis = u64::try_from(millis).unwrap_or_default().min((1 << 48) - 1);
    MessageId::from(Uuid::from_u64_pair(millis << 16, 0))
}

/// Whether a text fits a pattern in which each `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    // The first place of each part leaves the most to the others.
    for part in parts {
        match text.split_once(part) {
            Some((_, after)) => text = after,
            None => return false,
        }
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text) in [
            ("order.placed", "order.placed"),
            ("order.*", "order.placed"),
            ("*", ""),
            ("*.placed", "order.placed"),
            ("o*r.*d", "order.placed"),
            ("a*b*b", "abb"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("order.*", "orders.placed"),
            ("order.placed", "order.place"),
            ("a*a", "a"),
            ("a*b*b", "ab"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
