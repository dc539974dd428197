//! The log of the in-memory outbox, and its messages.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::log::{Logged, LoggedMessage, Look, LookRequest, PENDING_MAX, Position};
use outbox_core::message::{Aggregate, MessageId};
use outbox_core::store::{MessageStatus, PurgeRequest, Purged};
use tokio::sync::Notify;

use super::{Row, State};

const STEP: u64 = 10;

pub(in super::super::super) type LoggedCommit = (Position, Vec<LoggedMessage>);

#[derive(Debug, Default)]
pub(in super::super::super) struct Log {
    is_on: bool,
    commits: Vec<LoggedCommit>,
    written: Position,
    pub(in super::super::super) stored: Position,
    /// Ahead of `stored` after the log was replaced.
    freed: Position,
    pub(in super::super::super) adopted_to: Position,
    passed: HashSet<MessageId>,
    pub(in super::super::super) reader: Option<u64>,
    pub(in super::super::super) readings: u64,
    pub(in super::super::super) news: Arc<Notify>,
    pub(in super::super::super) hidden: u32,
    pub(in super::super::super) opens_in: Duration,
    pub(in super::super::super) measures_in: Duration,
    pub(in super::super::super) keeps_max: Option<u64>,
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

    fn hides(&mut self) -> bool {
        let hides = self.hidden > 0;
        self.hidden = self.hidden.saturating_sub(1);
        hides
    }

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
    pub(super) fn write_log(&mut self, row_ids: &[i64]) {
        self.log.written.0 += STEP;
        let rows = row_ids.iter().filter_map(|row_id| self.rows.get(row_id));
        let messages: Vec<LoggedMessage> = rows
            .filter(|row| row.is_logged())
            .map(|row| row.logged(self.log.written))
            .collect();
        if !messages.is_empty() {
            self.log.commits.push((self.log.written, messages));
        }
        self.log.news.notify_waiters();
    }

    /// Makes a message with the status `logged` unreadable in the table and in the log.
    pub(super) fn corrupt_logged(&mut self, id: MessageId) {
        let messages = self.log.commits.iter_mut().flat_map(|(_, messages)| messages);
        for message in messages.filter(|message| message.id == id) {
            message.row.message = Err("headers are not JSON: injected fault".to_owned().into());
        }
    }

    pub(in super::super) fn look(&mut self, request: LookRequest<'_>) -> Look {
        let hides = self.log.hides();
        let status = |asked: &&Logged| {
            let row = self.ids.get(&asked.id).and_then(|row_id| self.rows.get(row_id));
            row.map(|row| row.status)
        };
        let those = |wanted: &[MessageStatus]| -> Vec<MessageId> {
            let asked = request.messages.iter().filter(|_| !hides);
            let found = asked.filter(|asked| status(asked).is_some_and(|status| wanted.contains(&status)));
            found.map(|asked| asked.id).collect()
        };
        let rows = self.rows.values();
        let pending = rows
            .filter(|row| row.status == MessageStatus::Pending)
            .map(Row::aggregate);
        let pending: Vec<&Aggregate> = pending.take(PENDING_MAX + 1).collect();
        let blocks = &self.index.blocks;
        let comes_first =
            |aggregate: &&Aggregate| blocks.contains_key(aggregate) || pending.contains(aggregate);
        Look {
            first: request.aggregates.iter().filter(comes_first).cloned().collect(),
            any: !blocks.is_empty() || !pending.is_empty(),
            is_flooded: pending.len() > PENDING_MAX,
            logged: those(&[MessageStatus::Logged]),
            unseen: match hides {
                true => request.messages.iter().map(|asked| asked.id).collect(),
                false => Vec::new(),
            },
            now: self.now(),
        }
    }

    /// Makes logged messages pending. Commits are visible immediately, so a missing message was
    /// deleted.
    pub(in super::super) fn adopt(&mut self, messages: &[Logged]) -> Vec<MessageId> {
        if self.log.hides() {
            return Vec::new();
        }
        let stored = self.log.stored;
        for Logged { id, .. } in messages.iter().filter(|asked| asked.passed_from > stored) {
            if let Some(row_id) = self.ids.get(id).copied() {
                self.adopt_row(row_id);
            }
        }
        messages.iter().map(|message| message.id).collect()
    }

    fn adopt_row(&mut self, row_id: i64) {
        if self.rows.get(&row_id).is_some_and(Row::is_logged) {
            self.log.adopted_to = self.log.written;
            self.change(row_id, |row| row.status = MessageStatus::Pending);
        }
    }

    /// Makes all messages after the stored position pending, because a lost log may not have
    /// delivered them.
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

    pub(super) fn is_published(&self, row: &Row) -> bool {
        row.status == MessageStatus::Published
            || (row.is_logged() && self.log.passed.contains(&row.message.id))
    }

    pub(super) fn is_replayable(&self, row: &Row) -> bool {
        row.status == MessageStatus::Dead || self.is_published(row)
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
