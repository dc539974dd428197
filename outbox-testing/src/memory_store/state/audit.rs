//! Recorded operations, with the messages that they changed.

use std::num::NonZeroU32;

use outbox_core::message::{Aggregate, MessageId};
use outbox_core::store::{
    MessageStatus, OPERATION_MESSAGES_MAX, Operation, OperationFilter, OperationId, OperationKind,
    OperationMessages, SetupKind, StoreError,
};

use super::{Row, State};

#[derive(Debug, Clone)]
pub(super) struct WrittenDown {
    operation: Operation,
    messages: Vec<MessageId>,
}

impl WrittenDown {
    fn new(operation: &Operation) -> Self {
        Self {
            operation: operation.clone(),
            messages: Vec::new(),
        }
    }
}

impl State {
    pub(in super::super) fn advance(
        &mut self,
        operation: &Operation,
        at_most: NonZeroU32,
    ) -> Result<Operation, StoreError> {
        if !operation.kind.takes_messages() {
            let refused = format!("operation {} is not a retry, skip or replay", operation.id);
            return Err(StoreError::setup(SetupKind::Operation, refused, ""));
        }
        let written = self.operations.get(&operation.id);
        let is_written = written.is_some();
        let mut operation = written.map_or_else(|| operation.clone(), |written| written.operation.clone());
        if operation.is_finished() {
            return Ok(operation);
        }
        let at_most = u64::from(at_most.get());
        let rows = self.next_of(
            &operation,
            operation.left().map_or(at_most, |left| left.min(at_most)),
        );
        if operation.kind == OperationKind::Replay {
            operation.until = operation.until.or(Some(self.last_row_id));
        }
        let ids = rows
            .iter()
            .filter_map(|row_id| Some(self.rows.get(row_id)?.message.id));
        let mut messages: Vec<MessageId> = ids.collect();
        operation.changed += match operation.kind {
            OperationKind::Retry => self.retry_rows(&rows),
            OperationKind::Skip => self.skip_rows(&rows),
            _ => {
                messages = self.copy_rows(&rows);
                messages.len() as u64
            }
        };
        operation.position = rows.last().copied().or(operation.position);
        let is_last = (rows.len() as u64) < at_most || operation.left() == Some(0);
        operation.finished_at = is_last.then(|| self.now());
        if is_written || !rows.is_empty() {
            operation.started_at = operation.started_at.or(Some(self.now()));
            let written = self
                .operations
                .entry(operation.id)
                .or_insert_with(|| WrittenDown::new(&operation));
            written.operation = operation.clone();
            let room = OPERATION_MESSAGES_MAX - written.messages.len();
            written.messages.extend(messages.into_iter().take(room));
        }
        Ok(operation)
    }

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

    pub(super) fn note(&mut self, operation: &Operation, changed: u64) {
        self.write_down(operation);
        self.finish(operation.id, changed);
    }

    pub(in super::super) fn resume_as(&mut self, aggregate: &Aggregate, operation: &Operation) -> bool {
        let now = self.now();
        let block = self.index.blocks.get_mut(aggregate);
        let Some(block) = block.filter(|block| !block.is_halted()) else {
            return false;
        };
        block.until = block.until.min(now);
        self.note(operation, 1);
        true
    }

    pub(in super::super) fn write_down(&mut self, operation: &Operation) {
        let mut new = WrittenDown::new(operation);
        new.operation.started_at = Some(self.now());
        self.operations.entry(operation.id).or_insert(new);
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
            let actor = filter.actor.as_ref();
            filter
                .since
                .is_none_or(|since| operation.started_at >= Some(since))
                && actor.is_none_or(|actor| *actor == operation.intent.actor)
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
