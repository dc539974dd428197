//! Operations and what they have taken.

use std::num::NonZeroU32;

use outbox_core::message::{Aggregate, MessageId};
use outbox_core::store::{
    Forgotten, MessageStatus, OPERATION_MESSAGES_MAX, Operation, OperationFilter, OperationId, OperationKind,
    OperationMessages, PauseRequest, SetupKind, StoreError,
};

use super::{Row, State};

/// An operation that is written down.
#[derive(Debug, Clone)]
pub(super) struct WrittenDown {
    operation: Operation,
    /// The first messages that it took, or the first copies.
    messages: Vec<MessageId>,
}

/// Why a purge is refused.
fn no_purge(id: OperationId) -> String {
    format!("the scope of operation {id} is not what a purge takes: published messages before a time")
}

impl State {
    pub(in super::super) fn advance(
        &mut self,
        operation: &Operation,
        at_most: NonZeroU32,
    ) -> Result<Operation, StoreError> {
        if !operation.kind.takes_messages() {
            return Err(StoreError::setup(
                SetupKind::Operation,
                format!("operation {} is no retry, skip, replay or purge", operation.id),
                "",
            ));
        }
        let written = self.operations.get(&operation.id);
        let is_written = written.is_some();
        let mut operation = written.map_or_else(|| operation.clone(), |written| written.operation.clone());
        if operation.is_finished() {
            return Ok(operation);
        }
        if operation.kind == OperationKind::Purge {
            return self.advance_purge(operation, is_written, at_most);
        }
        let limit = operation
            .left()
            .map_or(u64::from(at_most.get()), |left| left.min(at_most.get().into()));
        let rows = self.next_of(&operation, limit);
        operation.until = operation
            .until
            .or((operation.kind == OperationKind::Replay).then_some(self.last_row_id));
        let first: Vec<MessageId> = rows
            .iter()
            .filter_map(|row_id| Some(self.rows.get(row_id)?.message.id))
            .collect();
        let mut messages = first;
        operation.changed += match operation.kind {
            OperationKind::Retry => self.retry_rows(&rows),
            OperationKind::Skip => self.skip_rows(&rows),
            _ => {
                messages = self.copy_rows(&rows);
                messages.len() as u64
            }
        };
        operation.position = rows.last().copied().or(operation.position);
        let is_last = (rows.len() as u64) < u64::from(at_most.get()) || operation.left() == Some(0);
        operation.finished_at = is_last.then(|| self.now());
        if is_written || !rows.is_empty() {
            operation.started_at = operation.started_at.or(Some(self.now()));
            let written = self.operations.entry(operation.id).or_insert(WrittenDown {
                operation: operation.clone(),
                messages: Vec::new(),
            });
            written.operation = operation.clone();
            let room = OPERATION_MESSAGES_MAX - written.messages.len();
            written.messages.extend(messages.into_iter().take(room));
        }
        Ok(operation)
    }

    /// Deletes the next messages of a purge.
    fn advance_purge(
        &mut self,
        mut operation: Operation,
        is_written: bool,
        at_most: NonZeroU32,
    ) -> Result<Operation, StoreError> {
        let Some(before) = operation.scope.purges_before() else {
            return Err(StoreError::setup(
                SetupKind::Operation,
                no_purge(operation.id),
                "",
            ));
        };
        let limit = operation
            .left()
            .map_or(u64::from(at_most.get()), |left| left.min(at_most.get().into()));
        let is_old = |row: &&Row| {
            row.status == MessageStatus::Published
                && row.message.created_at < before
                && row.published_at.is_some_and(|published_at| published_at < before)
        };
        let old = self.rows.values().filter(is_old).map(|row| row.row_id);
        let old: Vec<i64> = old.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect();
        for row_id in &old {
            self.delete(*row_id);
        }
        operation.changed += old.len() as u64;
        let is_last = (old.len() as u64) < u64::from(at_most.get()) || operation.left() == Some(0);
        operation.finished_at = is_last.then(|| self.now());
        if is_written || !old.is_empty() {
            operation.started_at = operation.started_at.or(Some(self.now()));
            operation.position = i64::try_from(operation.changed).ok();
            self.write_down(&operation);
            if let Some(written) = self.operations.get_mut(&operation.id) {
                written.operation = operation.clone();
            }
        }
        Ok(operation)
    }

    /// Row ids of the next messages that an operation takes.
    fn next_of(&self, operation: &Operation, limit: u64) -> Vec<i64> {
        let selection = &operation.scope.selection;
        let until = operation.until.unwrap_or(i64::MAX);
        let is_taken = |row: &Row| match operation.kind {
            OperationKind::Skip => row.status == MessageStatus::Dead && row.halts,
            OperationKind::Retry => row.status == MessageStatus::Dead,
            _ => self.is_replayable(row),
        };
        self.selected(selection)
            .filter(|row| Some(row.row_id) > operation.position && row.row_id <= until && is_taken(row))
            .map(|row| row.row_id)
            .take(usize::try_from(limit).unwrap_or(usize::MAX))
            .collect()
    }

    /// Writes down an operation that was done in one step.
    fn note(&mut self, operation: &Operation, changed: u64) {
        self.write_down(operation);
        self.finish(operation.id, changed);
    }

    pub(in super::super) fn resume_as(&mut self, aggregate: &Aggregate, operation: &Operation) -> bool {
        let resumed = self.resume(aggregate);
        if resumed {
            self.note(operation, 1);
        }
        resumed
    }

    pub(in super::super) fn forget_as(
        &mut self,
        aggregates: &[Aggregate],
        operation: &Operation,
    ) -> Forgotten {
        let forgotten = self.forget(aggregates);
        if forgotten.left.len() < aggregates.len() {
            self.note(operation, forgotten.messages);
        }
        forgotten
    }

    pub(in super::super) fn pause_as(&mut self, request: &PauseRequest, operation: &Operation) -> bool {
        let is_new = self.operation(operation.id).is_none();
        if is_new {
            self.pause(request);
            self.note(operation, 1);
        }
        is_new
    }

    pub(in super::super) fn unpause_as(
        &mut self,
        aggregate_type: Option<&str>,
        operation: &Operation,
    ) -> bool {
        let ended = self.operation(operation.id).is_none() && self.unpause(aggregate_type);
        if ended {
            self.note(operation, 1);
        }
        ended
    }

    pub(in super::super) fn write_down(&mut self, operation: &Operation) {
        let mut operation = operation.clone();
        operation.started_at = Some(self.now());
        self.operations
            .entry(operation.id)
            .or_insert_with(|| WrittenDown {
                operation,
                messages: Vec::new(),
            });
    }

    pub(in super::super) fn finish(&mut self, id: OperationId, changed: u64) {
        let now = self.now();
        if let Some(written) = self.operations.get_mut(&id)
            && !written.operation.is_finished()
        {
            written.operation.changed = changed;
            written.operation.finished_at = Some(now);
        }
    }

    pub(in super::super) fn move_operation(&mut self, id: OperationId, position: i64) {
        if let Some(written) = self.operations.get_mut(&id) {
            written.operation.position = Some(position);
        }
    }

    pub(in super::super) fn operations(&self, filter: &OperationFilter, limit: NonZeroU32) -> Vec<Operation> {
        let is_wanted = |operation: &Operation| {
            filter
                .since
                .is_none_or(|since| operation.started_at >= Some(since))
                && filter
                    .actor
                    .as_ref()
                    .is_none_or(|actor| *actor == operation.intent.actor)
                && filter.kind.as_ref().is_none_or(|kind| *kind == operation.kind)
                && filter.before.is_none_or(|before| operation.id < before)
        };
        let operations = self.operations.values().rev().map(|written| &written.operation);
        operations
            .filter(|operation| is_wanted(operation))
            .take(limit.get() as usize)
            .cloned()
            .collect()
    }

    pub(in super::super) fn operation(&self, id: OperationId) -> Option<Operation> {
        Some(self.operations.get(&id)?.operation.clone())
    }

    pub(in super::super) fn messages_of(&self, id: OperationId) -> OperationMessages {
        let Some(written) = self.operations.get(&id) else {
            return OperationMessages::default();
        };
        let rows = written
            .messages
            .iter()
            .filter_map(|id| self.rows.get(self.ids.get(id)?));
        let mut messages: Vec<_> = rows.map(Row::stored).collect();
        messages.sort_by_key(|message| message.row_id);
        OperationMessages::new(&written.messages, messages)
    }
}
