//! State and problems of the log.

use std::fmt::Write as _;
use std::time::Duration;

use crate::admin::{Next, Reason, State};
use outbox::log::SlotStatus;
use serde::Serialize;

use super::super::text;
use crate::output::{self, Print, plain};

const BEHIND_AFTER: Duration = Duration::from_secs(60);

pub(in crate::commands) fn is_there(status: &SlotStatus) -> bool {
    status.is_on || status.exists || status.takes_new || status.undecided > 0
}

#[derive(Debug, Serialize)]
pub(in crate::commands) struct LogRow {
    name: String,
    pub(in crate::commands) is_on: bool,
    exists: bool,
    is_read: bool,
    is_lost: bool,
    /// WAL position up to which every message is published or belongs to the table.
    stored: Option<u64>,
    retained_bytes: Option<u64>,
    /// Bytes until the server invalidates the slot; `null` if never.
    safe_bytes: Option<u64>,
    behind_bytes: Option<u64>,
    stored_seconds_ago: Option<f64>,
    /// Logged messages that may be unpublished, at most 10,000.
    undecided: u64,
    oldest_undecided_seconds: Option<f64>,
    /// Worst log problem with its repair; `null` without a problem.
    pub(in crate::commands) next: Option<Reason>,
}

pub(in crate::commands) fn fault(status: &SlotStatus) -> Option<Reason> {
    let (degraded, undecided) = (State::Degraded, status.undecided);
    let oldest = status.oldest_undecided.unwrap_or_default();
    Some(match status {
        SlotStatus { is_on: false, .. } => return of_off(status),
        SlotStatus { is_read: false, .. } if undecided > 0 => Reason::new(
            State::Stuck,
            format!(
                "no relay reads the log; {} possibly unpublished",
                text::counted(undecided, "message is", "messages are")
            ),
            read_or_drop(),
        ),
        SlotStatus { exists: false, .. } => Reason::new(
            degraded,
            "the slot was dropped; the next log relay recreates it",
            read(),
        ),
        SlotStatus { is_lost: true, .. } => Reason::new(
            degraded,
            "the database has invalidated the slot; the next log relay recreates it, and publishes duplicates",
            read(),
        ),
        SlotStatus { is_read: false, .. } => Reason::new(
            degraded,
            "no relay reads the log: new messages are not published, and the slot retains WAL",
            read_or_drop(),
        ),
        _ if oldest > BEHIND_AFTER => Reason::new(
            degraded,
            format!(
                "the log relay is behind: its oldest possibly unpublished message is {} s old",
                oldest.as_secs()
            ),
            Next::and_advice("outbox relay list", "the relay's log has the cause"),
        ),
        SlotStatus { takes_new: false, .. } => Reason::new(
            degraded,
            "the log is on, but new messages are recorded as pending: the default of the column `status` was changed",
            "outbox relay log init --yes",
        ),
        _ => return None,
    })
}

/// A log relay uses its own login, so no command can start it.
fn read() -> Next {
    Next::and_advice(
        "outbox relay list",
        "start the log relay: its service, or `outbox relay run` with `log.read = true` in the file and a relay's login",
    )
}

fn read_or_drop() -> Next {
    Next::and_advice(
        "outbox relay list",
        "start the log relay: its service, or `outbox relay run` with `log.read = true` in the file and a relay's login; otherwise \
         `outbox relay log drop` publishes from the table",
    )
}

fn of_off(status: &SlotStatus) -> Option<Reason> {
    let take_over = Next::and_advice(
        "outbox relay log init --yes",
        "to publish from the table instead: `outbox relay log drop --yes`",
    );
    let (degraded, undecided) = (State::Degraded, status.undecided);
    Some(match status {
        SlotStatus {
            other: Some(other), ..
        } => Reason::new(
            degraded,
            format!("the outbox already has a log named {other}"),
            Next::advice("set `log.name` in the file"),
        ),
        SlotStatus { takes_new: true, .. } => Reason::new(
            State::Stuck,
            "the log is off, but new messages are recorded as logged: no relay publishes them",
            take_over,
        ),
        _ if undecided > 0 => Reason::new(
            State::Stuck,
            format!(
                "the log is off, but at least {} logged: no relay publishes them",
                text::counted(undecided, "message is", "messages are")
            ),
            take_over,
        ),
        SlotStatus { exists: true, .. } => Reason::new(
            degraded,
            "the log is off, and its slot retains WAL",
            "outbox relay log drop --yes",
        ),
        _ => return None,
    })
}

impl LogRow {
    pub(in crate::commands) fn of(status: SlotStatus) -> Self {
        let seconds = |span: Duration| (span.as_secs_f64() * 1000.0).round() / 1000.0;
        Self {
            next: fault(&status),
            name: status.name,
            is_on: status.is_on,
            exists: status.exists,
            is_read: status.is_read,
            is_lost: status.is_lost,
            stored: status.stored.map(|position| position.0),
            retained_bytes: status.retained_bytes,
            safe_bytes: status.safe_bytes,
            behind_bytes: status.behind_bytes,
            stored_seconds_ago: status.stored_ago.map(seconds),
            undecided: status.undecided,
            oldest_undecided_seconds: status.oldest_undecided.map(seconds),
        }
    }

    pub(in crate::commands) fn line(&self) -> String {
        format!("log         {}", self.state())
    }

    pub(super) fn state(&self) -> String {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        format!(
            "{}, slot {}{}; retains {} bytes of WAL, headroom {}{}",
            if self.is_on { "on" } else { "off" },
            plain(&self.name),
            match (self.exists, self.is_read) {
                (false, _) => " (missing)",
                (true, true) => ", read by a relay",
                (true, false) => ", no reader",
            },
            bytes(self.retained_bytes),
            bytes(self.safe_bytes),
            match (self.undecided, self.oldest_undecided_seconds) {
                (undecided @ 1.., Some(oldest)) =>
                    format!("; {undecided} possibly unpublished, oldest {oldest:.0} s"),
                _ => String::new(),
            },
        )
    }
}

impl Print for LogRow {
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.line());
        if let Some(fault) = &self.next {
            let _ = writeln!(text, "  {}", plain(&fault.what));
            text.push_str(&output::next_lines(&fault.next, "  "));
        }
        text
    }
}
