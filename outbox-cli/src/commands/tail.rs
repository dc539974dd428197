//! `outbox tail`: follows what is recorded and what becomes of it, until it is interrupted.
//!
//! Messages are read in the order of their ids, for which every database has an index. A long
//! transaction, or a writer whose clock is behind, commits rows with ids that were passed already.
//! So each poll also rereads the rows of the last `--window`, and prints new rows and new statuses.
//!
//! An id of another version than 7 does not name a time. From the first such id on, messages are
//! followed by the time of recording: each look then reads the index of ids as a whole.
//!
//! Invariants: nothing is changed or received; a message is printed once for each status. Memory
//! holds the rows of the window, at most 10,000. A poll by the time of recording holds all rows
//! that it finds.

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
            cursor: Cursor::new(WINDOW_ROWS, first_key()),
            by: By::Ids,
            is_first: true,
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

/// The order in which messages are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Ids,
    Recording,
}

/// The place of a message: its time of recording, or the same time for all, and its id.
type Key = (OffsetDateTime, MessageId);

/// The place before all messages.
fn first_key() -> Key {
    (OffsetDateTime::UNIX_EPOCH, MessageId::from(Uuid::nil()))
}

struct Follower {
    command: TailCommand,
    cursor: Cursor<Key>,
    by: By,
    /// Whether no look has ended yet.
    is_first: bool,
    stream: Stream<MessageRow>,
    printed: u64,
}

impl Follower {
    /// Finds where to begin. What is there already is noted and not printed, unless `--since` asks for it.
    async fn begin(&mut self, place: &Place) -> Result<(), CommandError> {
        // The neighbours of the newest rows may not be committed yet.
        let rows = page(place, &Selection::all(), PageFrom::Newest).await?;
        if rows.iter().any(|row| is_foreign(row.id)) {
            let is_old = self.command.since.is_none();
            return self.follow_recording(place, is_old).await;
        }
        if let Some(since) = self.command.since {
            self.cursor.begin(self.key(since, first_id_of(since)));
            return Ok(());
        }
        if let Some(oldest) = rows.last().filter(|_| rows.len() == PAGE.get() as usize) {
            self.cursor.begin(self.key(oldest.recorded_at, oldest.id));
        }
        for row in rows {
            let key = self.key(row.recorded_at, row.id);
            self.cursor.see(key, row.status, Instant::now());
        }
        Ok(())
    }

    /// Follows by the time of recording from now on. Existing rows count
    /// as printed if they were printed, or if `is_old` is set.
    async fn follow_recording(&mut self, place: &Place, is_old: bool) -> Result<(), CommandError> {
        self.by = By::Recording;
        let window = self.command.window.try_into().unwrap_or(time::Duration::MAX);
        let begun = OffsetDateTime::now_utc().checked_sub(window);
        let since = self.command.since.filter(|_| self.is_first);
        let from = since.or(begun).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (epoch, nil) = first_key();
        let known = std::mem::replace(&mut self.cursor, Cursor::new(WINDOW_ROWS, (from, nil)));
        let (mut after, now) = (nil, Instant::now());
        let selection = Selection::all().recorded_from(from);
        while is_old || known.is_any() {
            let rows = page(place, &selection, PageFrom::After(after)).await?;
            let is_last = rows.len() < PAGE.get() as usize;
            after = rows.last().map_or(after, |row| row.id);
            for row in rows {
                if is_old || known.has((epoch, row.id), row.status) {
                    self.cursor.see((row.recorded_at, row.id), row.status, now);
                }
            }
            if is_last {
                break;
            }
        }
        self.cursor.forget(self.command.window, now);
        Ok(())
    }

    fn key(&self, recorded_at: OffsetDateTime, id: MessageId) -> Key {
        match self.by {
            By::Ids => (first_key().0, id),
            By::Recording => (recorded_at, id),
        }
    }

    /// Reads the window again, and everything behind it.
    async fn look(&mut self, place: &Place) -> Result<Round, CommandError> {
        let floor = self.cursor.floor();
        let (selection, mut after) = match self.by {
            By::Ids => (Selection::all(), floor.1),
            By::Recording => (Selection::all().recorded_from(floor.0), first_key().1),
        };
        let (before, is_empty) = (self.printed, !self.cursor.is_any());
        loop {
            let rows = page(place, &selection, PageFrom::After(after)).await?;
            if self.by == By::Ids && rows.iter().any(|row| is_foreign(row.id)) {
                self.follow_recording(place, false).await?;
                return Ok(Round::Found);
            }
            let is_last = rows.len() < PAGE.get() as usize;
            after = rows.last().map_or(after, |row| row.id);
            let now = Instant::now();
            for row in rows {
                let key = self.key(row.recorded_at, row.id);
                if key <= floor || !self.cursor.see(key, row.status, now) || !self.command.is_wanted(&row) {
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
            // After each page, or a look back over a long time would remember each row of it. By
            // the time of recording, a later page may hold a row that would be forgotten, and was
            // noted by an earlier look.
            if self.by == By::Ids || is_empty || is_last {
                self.cursor.forget(self.command.window, now);
            }
            if is_last {
                break;
            }
        }
        self.is_first = false;
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
async fn page(place: &Place, selection: &Selection, from: PageFrom) -> Result<Vec<MessageRow>, CommandError> {
    place
        .ask(outbox_admin::page(&place.store, selection, from, PAGE))
        .await
}

/// Whether an id does not name the time of its making.
fn is_foreign(id: MessageId) -> bool {
    let tomorrow = OffsetDateTime::now_utc().saturating_add(time::Duration::DAY);
    id.as_uuid().get_version_num() != 7 || id > first_id_of(tomorrow)
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
