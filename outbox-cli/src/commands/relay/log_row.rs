//! How a log stands, in a row and for people, and what is wrong with it.

use std::fmt::Write as _;
use std::time::Duration;

use outbox::log::SlotStatus;
use outbox_admin::{Next, Reason, State};
use serde::Serialize;

use super::super::text;
use crate::output::{self, Print, plain};

/// Age of the oldest undecided message above which the log counts as behind, as for pending messages.
const BEHIND_AFTER: Duration = Duration::from_secs(60);

/// Whether anything of a log is in the database: this one or another one is on, or something is left of it.
pub(in crate::commands) fn is_there(status: &SlotStatus) -> bool {
    status.is_on || status.exists || status.takes_new || status.undecided > 0
}

/// How a log stands.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct LogRow {
    /// The slot.
    name: String,
    pub(in crate::commands) is_on: bool,
    exists: bool,
    is_read: bool,
    is_lost: bool,
    /// Everything up to this position is published or the table's.
    stored: Option<u64>,
    retained_bytes: Option<u64>,
    /// `null` if the server never gives the slot up.
    safe_bytes: Option<u64>,
    /// Bytes of the database's log behind that position.
    behind_bytes: Option<u64>,
    stored_seconds_ago: Option<f64>,
    /// Messages that may not be published; counted up to 10,000.
    undecided: u64,
    oldest_undecided_seconds: Option<f64>,
    /// The worst fault of the log, and the command that mends it; `null` without one.
    pub(in crate::commands) next: Option<Reason>,
    /// What the command would do.
    #[serde(skip)]
    pub(in crate::commands) would: Option<&'static str>,
}

/// What is wrong with a log, if anything is. The worst comes first.
pub(in crate::commands) fn fault(status: &SlotStatus) -> Option<Reason> {
    let (degraded, undecided) = (State::Degraded, status.undecided);
    let oldest = status.oldest_undecided.unwrap_or_default();
    Some(match status {
        SlotStatus { is_on: false, .. } => return of_off(status),
        SlotStatus { is_read: false, .. } if undecided > 0 => Reason::new(
            State::Stuck,
            format!(
                "no relay reads the log; {} not published, as far as is known",
                text::counted(undecided, "message is", "messages are")
            ),
            read_or_drop(),
        ),
        SlotStatus { exists: false, .. } => Reason::new(
            degraded,
            "the slot was dropped; the relay that opens the log recreates it",
            read(),
        ),
        SlotStatus { is_lost: true, .. } => Reason::new(
            degraded,
            "the database has given the slot up; the relay that opens the log recreates it, and some messages come twice",
            read(),
        ),
        SlotStatus { is_read: false, .. } => Reason::new(
            degraded,
            "no relay reads the log: nothing new is published, and the slot keeps the database's disk",
            read_or_drop(),
        ),
        _ if oldest > BEHIND_AFTER => Reason::new(
            degraded,
            format!(
                "the relay of the log is behind: the oldest message of the log that is not known to be published is {} s old",
                oldest.as_secs()
            ),
            Next::and_advice("outbox relay list", "the log of the relay has the cause"),
        ),
        SlotStatus { takes_new: false, .. } => Reason::new(
            degraded,
            "the log is on, and new messages are recorded as pending all the same: somebody changed the default of the column `status`",
            "outbox relay log init --yes",
        ),
        _ => return None,
    })
}

/// A relay of the log runs with a login of its own.
fn read() -> Next {
    Next::and_advice(
        "outbox relay list",
        "start the relay of the log: its service, or `outbox relay run` with `log.read = true` in the file and the login of a relay",
    )
}

fn read_or_drop() -> Next {
    Next::and_advice(
        "outbox relay list",
        "start the relay of the log: its service, or `outbox relay run` with `log.read = true` in the file and the login of a relay; without a log, \
         `outbox relay log drop` lets the table publish",
    )
}

/// What is wrong with a log that is off, if anything is.
fn of_off(status: &SlotStatus) -> Option<Reason> {
    let take_over = Next::and_advice(
        "outbox relay log init --yes",
        "which reads the log; to publish from the table instead: `outbox relay log drop --yes`",
    );
    let (degraded, undecided) = (State::Degraded, status.undecided);
    Some(match status {
        SlotStatus {
            other: Some(other), ..
        } => Reason::new(
            degraded,
            format!("the outbox has a log already, which is called {other}"),
            Next::advice("set `log.name` in the file"),
        ),
        SlotStatus { takes_new: true, .. } => Reason::new(
            State::Stuck,
            "the log is off, and new messages are recorded as the log's all the same: nobody publishes them",
            take_over,
        ),
        _ if undecided > 0 => Reason::new(
            State::Stuck,
            format!(
                "the log is off, and at least {} the log's all the same: nobody publishes them",
                text::counted(undecided, "message is", "messages are")
            ),
            take_over,
        ),
        SlotStatus { exists: true, .. } => Reason::new(
            degraded,
            "the log is off, and its slot keeps the database's disk",
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
            would: None,
        }
    }

    /// In a line, for people.
    pub(in crate::commands) fn line(&self) -> String {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        format!(
            "log         {}, slot {}{}; keeps {} bytes of the database's disk, given up after {} more{}",
            if self.is_on { "on" } else { "off" },
            plain(&self.name),
            match (self.exists, self.is_read) {
                (false, _) => " (missing)",
                (true, true) => ", read by a relay",
                (true, false) => ", read by nobody",
            },
            bytes(self.retained_bytes),
            bytes(self.safe_bytes),
            match (self.undecided, self.oldest_undecided_seconds) {
                (undecided @ 1.., Some(oldest)) =>
                    format!("; {undecided} may not be published, the oldest {oldest:.0} s old"),
                _ => String::new(),
            },
        )
    }
}

impl Print for LogRow {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn text(&self) -> Option<String> {
        let mut text = format!("{}\n", self.line());
        // Writing to a `String` does not fail.
        if let Some(would) = self.would {
            let _ = write!(text, "{would}");
        } else if let Some(fault) = &self.next {
            let _ = writeln!(text, "  {}", plain(&fault.what));
            text.push_str(&output::next_lines(&fault.next, "  "));
        }
        Some(text)
    }
}
