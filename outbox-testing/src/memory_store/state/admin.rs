//! Operator queries and changes, and the purge.

use std::num::NonZeroU32;
use std::ops::Bound;
use std::time::Duration;

use outbox_core::message::{Message, MessageId};
use outbox_core::store::{
    BACKLOG_COUNT_MAX, Backlog, BlockedAggregate, MessageStatus, PageFrom, PurgeRequest, Purged, Selection,
    StoredMessage,
};
use time::OffsetDateTime;

use super::index::Block;
use super::{Row, State};

impl State {
    pub(in super::super) fn backlog(&self) -> Backlog {
        let now = self.now();
        let count = |count: usize| (count as u64).min(BACKLOG_COUNT_MAX);
        let blocks = || self.index.blocks.values();
        let waiting = self.index.waiting();
        let oldest = self
            .rows
            .values()
            .filter_map(|row| self.due_since(row, now))
            .min();
        Backlog {
            pending: count(self.index.pending.len() + waiting),
            pending_estimate: (self.index.pending.len() + waiting) as u64,
            waiting: count(waiting),
            dead_letters: count(self.index.dead.len()),
            halted_aggregates: count(blocks().filter(|block| block.is_halted()).count()),
            blocked_aggregates: count(blocks().filter(|block| !block.is_due(now)).count()),
            oldest_unpublished: oldest.map(|due| since(due, now)),
        }
    }

    fn due_since(&self, row: &Row, now: OffsetDateTime) -> Option<OffsetDateTime> {
        let aggregate = &row.message.aggregate;
        let is_unpublished = matches!(row.status, MessageStatus::Pending | MessageStatus::Waiting);
        if !is_unpublished || self.is_paused(aggregate) {
            return None;
        }
        let is_delayed = |row: &Row| row.delayed_at(now).is_some();
        let block = self.index.blocks.get(aggregate).filter(|_| row.is_sequenced());
        let first = block.and_then(Block::first);
        let is_behind = first
            .and_then(|(_, first)| self.rows.get(&first))
            .is_some_and(is_delayed);
        if is_delayed(row) || is_behind || block.is_some_and(Block::is_halted) {
            return None;
        }
        let recorded = row.message.created_at;
        Some(row.available_at.map_or(recorded, |at| at.max(recorded)))
    }

    pub(in super::super) fn list(&self, selection: &Selection, limit: NonZeroU32) -> Vec<StoredMessage> {
        self.selected(selection)
            .take(limit.get() as usize)
            .map(Row::stored)
            .collect()
    }

    pub(in super::super) fn page(
        &self,
        selection: &Selection,
        from: PageFrom,
        limit: NonZeroU32,
    ) -> Vec<StoredMessage> {
        let by_row_id = from.is_by_row_id(selection.status);
        let mut selection = selection.clone();
        selection.after = None;
        let mut rows: Vec<&Row> = self.selected(&selection).collect();
        match by_row_id {
            true => rows.sort_by_key(|row| row.row_id),
            false => rows.sort_by_key(|row| row.message.id),
        }
        match from {
            PageFrom::After(id) => rows.retain(|row| row.message.id > id),
            PageFrom::Before(place) if by_row_id => rows.retain(|row| row.row_id < place.row_id),
            PageFrom::Before(place) => rows.retain(|row| row.message.id < place.id),
            _ => {}
        }
        if !matches!(from, PageFrom::After(_)) {
            rows.reverse();
        }
        let rows = rows.into_iter().take(limit.get() as usize);
        rows.map(Row::stored).collect()
    }

    pub(super) fn selected<'a>(&'a self, selection: &'a Selection) -> impl Iterator<Item = &'a Row> {
        let from = selection.after.map_or(Bound::Unbounded, Bound::Excluded);
        self.rows
            .range((from, Bound::Unbounded))
            .map(|(_, row)| row)
            .filter(|row| matches(selection, row))
    }

    pub(super) fn retry_rows(&mut self, dead: &[i64]) -> u64 {
        for row_id in dead {
            self.lift_halt(*row_id);
            let is_blocked = self.rows.get(row_id).is_some_and(|row| {
                row.is_sequenced() && self.index.blocks.contains_key(&row.message.aggregate)
            });
            self.change(*row_id, |row| {
                row.attempts = 0;
                row.status = match is_blocked {
                    true => MessageStatus::Waiting,
                    false => MessageStatus::Pending,
                };
            });
        }
        dead.len() as u64
    }

    pub(super) fn skip_rows(&mut self, dead: &[i64]) -> u64 {
        dead.iter().filter(|row_id| self.lift_halt(**row_id)).count() as u64
    }

    fn lift_halt(&mut self, row_id: i64) -> bool {
        let now = self.now();
        let Some(row) = self.rows.get(&row_id).filter(|row| row.halts) else {
            return false;
        };
        let aggregate = row.message.aggregate.clone();
        self.change(row_id, |row| row.halts = false);
        if let Some(block) = self.index.blocks.get_mut(&aggregate) {
            block.until = now;
        }
        true
    }

    pub(super) fn copy_rows(&mut self, originals: &[i64]) -> Vec<MessageId> {
        let originals = originals.iter().filter_map(|row_id| self.rows.get(row_id));
        let originals: Vec<Row> = originals.cloned().collect();
        let mut ids = Vec::with_capacity(originals.len());
        let mut recorded = Vec::with_capacity(originals.len());
        for original in originals {
            let message = Message {
                id: MessageId::fresh(),
                ..original.message
            };
            ids.push(message.id);
            let row_id = self.next_row_id();
            self.insert(Row {
                is_unreadable: original.is_unreadable,
                status: self.log.status(),
                ..Row::pending(row_id, message)
            });
            recorded.push(row_id);
        }
        self.write_log(&recorded);
        ids
    }

    pub(in super::super) fn blocked(&self, limit: NonZeroU32) -> Vec<BlockedAggregate> {
        let now = self.now();
        let mut blocks: Vec<_> = self.index.blocks.iter().collect();
        blocks.sort_by_key(|(aggregate, block)| (!block.is_halted(), block.until, *aggregate));
        let blocked = blocks
            .into_iter()
            .map(|(aggregate, block)| block.shown(aggregate, now));
        blocked.take(limit.get() as usize).collect()
    }

    pub(in super::super) fn published(
        &self,
        from: OffsetDateTime,
        until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Vec<Message> {
        self.by_id(after)
            .filter(|row| self.is_published(row) && !row.is_unreadable)
            .filter(|row| (from..until).contains(&row.message.created_at))
            .take(limit.get() as usize)
            .map(|row| row.message.clone())
            .collect()
    }

    pub(in super::super) fn recorded_between(
        &self,
        from: OffsetDateTime,
        until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Vec<StoredMessage> {
        self.by_id(after)
            .filter(|row| (from..until).contains(&row.message.created_at))
            .take(limit.get() as usize)
            .map(Row::stored)
            .collect()
    }

    fn by_id(&self, after: Option<MessageId>) -> impl Iterator<Item = &Row> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.ids
            .range((from, Bound::Unbounded))
            .filter_map(|(_, row_id)| self.rows.get(row_id))
    }

    pub(in super::super) fn purge(&mut self, request: PurgeRequest) -> Purged {
        self.purge_keys(request.keys_older_than);
        let Some(older_than) = request.older_than else {
            return Purged::default();
        };
        let now = self.now();
        let is_old = |time: OffsetDateTime| since(time, now) > older_than;
        let limit = request.limit.get() as usize;
        let looked_at: Vec<&Row> = self.by_id(request.after).take(limit).collect();
        let next = (looked_at.len() == limit)
            .then(|| looked_at.last().map(|row| row.message.id))
            .flatten();
        let old: Vec<i64> = looked_at
            .into_iter()
            .filter(|row| row.status == MessageStatus::Published && is_old(row.message.created_at))
            .filter(|row| row.published_at.is_some_and(is_old))
            .map(|row| row.row_id)
            .collect();
        for row_id in &old {
            self.delete(*row_id);
        }
        Purged {
            deleted: old.len() as u64,
            next,
        }
    }
}

fn matches(selection: &Selection, row: &Row) -> bool {
    let Message {
        id,
        aggregate,
        event_type,
        created_at,
        ..
    } = &row.message;
    selection.id.is_none_or(|wanted| wanted == *id)
        && selection.status.is_none_or(|wanted| wanted == row.status)
        && is_wanted(selection.aggregate_type.as_deref(), &aggregate.aggregate_type)
        && is_wanted(selection.aggregate_id.as_deref(), &aggregate.id)
        && is_wanted(selection.event_type.as_deref(), event_type)
        && selection.recorded_from.is_none_or(|from| from <= *created_at)
        && selection.recorded_until.is_none_or(|until| *created_at < until)
}

fn is_wanted(wanted: Option<&str>, value: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == value)
}

pub(super) fn since(earlier: OffsetDateTime, later: OffsetDateTime) -> Duration {
    (later - earlier).try_into().unwrap_or_default()
}
