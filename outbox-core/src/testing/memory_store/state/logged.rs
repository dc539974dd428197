//! The log of the in-memory outbox, and the messages that are the log's.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::{Row, State};
use crate::log::{LoggedMessage, Look, LookRequest, Position};
use crate::message::{Aggregate, MessageId};
use crate::store::{FetchedRow, MessageStatus, PurgeRequest, Purged};

/// How far positions of two commits are apart.
const STEP: u64 = 10;

/// A commit that the log keeps: its end, and the messages as they were recorded.
pub(in super::super::super) type LoggedCommit = (Position, Vec<LoggedMessage>);

#[derive(Debug, Default)]
pub(in super::super::super) struct Log {
    /// New messages are the log's.
    is_on: bool,
    /// Commits that are not freed.
    commits: Vec<LoggedCommit>,
    written: Position,
    /// The position that is stored, and up to where the log is freed.
    pub(in super::super::super) stored: Position,
    freed: Position,
    /// Logged messages that the stored position has passed.
    passed: HashSet<MessageId>,
    /// The number of the reading that is open.
    pub(in super::super::super) reader: Option<u64>,
    pub(in super::super::super) readings: u64,
    pub(in super::super::super) news: Arc<Notify>,
    /// How long it takes to open the log.
    pub(in super::super::super) opens_in: Duration,
}

impl Log {
    pub(super) fn status(&self) -> MessageStatus {
        match self.is_on {
            true => MessageStatus::Logged,
            false => MessageStatus::Pending,
        }
    }

    pub(in super::super::super) fn set_on(&mut self, on: bool) {
        self.is_on = on;
    }

    /// The first commit behind a position.
    pub(in super::super::super) fn behind(&self, position: Position) -> Option<LoggedCommit> {
        let next = self.commits.iter().find(|(end, _)| *end > position);
        next.cloned()
    }

    pub(in super::super::super) fn is_freed(&self) -> bool {
        self.commits.is_empty()
    }

    pub(in super::super::super) fn confirm(&mut self, position: Position) {
        self.stored = self.stored.max(position);
        self.freed = self.freed.max(position);
        let passed = self.commits.extract_if(.., |(end, _)| *end <= position);
        self.passed
            .extend(passed.flat_map(|(_, messages)| messages.into_iter().map(|message| message.id)));
    }

    pub(in super::super::super) fn write(&mut self, steps: u64) {
        self.written.0 += steps;
        self.news.notify_waiters();
    }

    /// Another log takes its place, which begins now.
    pub(in super::super::super) fn replace(&mut self) {
        self.commits.clear();
        self.written.0 += STEP;
        self.freed = self.written;
        self.reader = None;
        self.news.notify_waiters();
    }

    pub(in super::super::super) fn written(&self) -> Position {
        self.written
    }

    pub(in super::super::super) fn retained(&self) -> u64 {
        self.written.0 - self.freed.0
    }
}

impl State {
    /// Writes what was committed.
    pub(super) fn write_log(&mut self, row_ids: &[i64]) {
        self.log.written.0 += STEP;
        let rows = row_ids.iter().filter_map(|row_id| self.rows.get(row_id));
        let messages: Vec<LoggedMessage> = rows.filter(|row| row.is_logged()).map(Row::logged).collect();
        if !messages.is_empty() {
            self.log.commits.push((self.log.written, messages));
        }
        self.log.news.notify_waiters();
    }

    /// A message that was made unreadable after it was recorded is so in the log as well, because there is no way to record such a message.
    pub(super) fn corrupt_logged(&mut self, id: MessageId) {
        let messages = self.log.commits.iter_mut().flat_map(|(_, messages)| messages);
        for message in messages.filter(|message| message.id == id) {
            message.row.message = Err("headers are not JSON: injected fault".to_owned());
        }
    }

    pub(in super::super) fn pending(&self, limit: usize) -> Vec<(Aggregate, MessageId)> {
        let pending = self
            .rows
            .values()
            .filter(|row| row.status == MessageStatus::Pending);
        pending
            .take(limit)
            .map(|row| (row.message.aggregate.clone(), row.message.id))
            .collect()
    }

    pub(in super::super) fn look(&self, request: LookRequest<'_>) -> Look {
        let status = |id: &MessageId| {
            let row = self.ids.get(id).and_then(|row_id| self.rows.get(row_id));
            row.map(|row| row.status)
        };
        let those = |statuses: &[MessageStatus]| -> Vec<MessageId> {
            let messages = request.messages.iter().copied();
            messages
                .filter(|id| status(id).is_some_and(|status| statuses.contains(&status)))
                .collect()
        };
        let blocks = &self.index.blocks;
        let blocked = request
            .aggregates
            .iter()
            .filter(|aggregate| blocks.contains_key(aggregate));
        Look {
            blocked: blocked.cloned().collect(),
            any_blocked: !blocks.is_empty(),
            logged: those(&[MessageStatus::Logged]),
            open: those(&[MessageStatus::Pending, MessageStatus::Waiting]),
            now: self.now(),
        }
    }

    pub(in super::super) fn adopt(&mut self, messages: &[MessageId]) {
        for id in messages {
            if let Some(row_id) = self.ids.get(id).copied() {
                self.adopt_row(row_id);
            }
        }
    }

    fn adopt_row(&mut self, row_id: i64) {
        if self.rows.get(&row_id).is_some_and(Row::is_logged) {
            self.change(row_id, |row| row.status = MessageStatus::Pending);
        }
    }

    /// If the log is not the one whose position is stored, nobody knows which messages it has given: the table adopts those that the position has not passed.
    pub(in super::super) fn adopt_lost(&mut self) {
        if self.log.freed <= self.log.stored {
            return;
        }
        let is_left = |row: &&Row| row.is_logged() && !self.log.passed.contains(&row.message.id);
        let row_ids: Vec<i64> = self.rows.values().filter(is_left).map(|row| row.row_id).collect();
        for row_id in row_ids {
            self.adopt_row(row_id);
        }
        self.log.confirm(self.log.written);
    }

    pub(in super::super) fn purge_logged(&mut self, request: PurgeRequest) -> Purged {
        let now = self.now();
        let is_old = |row: &&Row| {
            let age = Duration::try_from(now - row.message.created_at).unwrap_or_default();
            row.is_logged()
                && self.log.passed.contains(&row.message.id)
                && request.older_than.is_some_and(|older_than| age > older_than)
        };
        let old: Vec<i64> = self.rows.values().filter(is_old).map(|row| row.row_id).collect();
        old.iter().for_each(|row_id| self.delete(*row_id));
        Purged {
            deleted: old.len() as u64,
            next: None,
        }
    }
}

impl Row {
    fn is_logged(&self) -> bool {
        self.status == MessageStatus::Logged
    }

    fn logged(&self) -> LoggedMessage {
        let created_at = self.message.created_at;
        LoggedMessage {
            id: self.message.id,
            row: FetchedRow {
                attempts: 0,
                failures: 0,
                waited: false,
                ..self.fetched(created_at)
            },
            created_at,
            available_at: self.available_at,
        }
    }
}
