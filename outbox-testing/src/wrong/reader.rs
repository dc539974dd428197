//! Readings with one mistake each.

use std::collections::VecDeque;
use std::mem;

use outbox_core::log::{LogEvent, LogReader, LoggedMessage, Position, Retained};
use outbox_core::message::MessageId;
use outbox_core::store::StoreError;
use tokio::task::yield_now;

use super::{LogMistake, M, WrongLog};
use crate::MemoryLogReader;

/// Reads a [`WrongLog`].
#[derive(Debug)]
pub struct WrongLogReader {
    log: WrongLog,
    inner: Option<MemoryLogReader>,
    ahead: VecDeque<LogEvent>,
    read_to: Position,
    from: Position,
    last_row_id: i64,
    has_spoken: bool,
    is_whole: bool,
}

impl WrongLogReader {
    pub(super) fn new(log: &WrongLog, inner: MemoryLogReader) -> Self {
        Self {
            is_whole: !log.has(M::LeavesHalfOpened),
            log: log.clone(),
            inner: Some(inner),
            ahead: VecDeque::new(),
            read_to: Position(0),
            from: Position(0),
            last_row_id: 0,
            has_spoken: false,
        }
    }

    pub(super) fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }

    pub(super) fn from(mut self, from: Position) -> Self {
        self.from = from;
        self
    }

    fn inner(&mut self) -> Result<&mut MemoryLogReader, StoreError> {
        self.inner.as_mut().ok_or_else(|| StoreError::Database {
            context: "the reading is broken",
            source: "a call was dropped".into(),
        })
    }

    async fn spoilt(&mut self, event: LogEvent) -> Option<LogEvent> {
        let Some(mistake) = self.log.mistake else {
            return Some(event);
        };
        match (mistake, event) {
            (M::LosesDroppedWaits, event) => {
                yield_now().await;
                Some(event)
            }
            (M::SaysNothingAtFirst, LogEvent::Idle(_)) if !self.has_spoken => {
                self.has_spoken = true;
                None
            }
            (M::OverlooksOthers, LogEvent::Idle(_)) if mem::replace(&mut self.has_spoken, true) => None,
            (_, LogEvent::Message(message)) => self.spoilt_message(mistake, message),
            (_, event) => Some(event),
        }
    }

    fn spoilt_message(&mut self, mistake: LogMistake, mut message: LoggedMessage) -> Option<LogEvent> {
        match mistake {
            M::RepeatsMessages => self.ahead.push_back(LogEvent::Message(message.clone())),
            M::MakesUpRows => message.row.attempts = 1,
            M::SplitsTransactions => {
                let end = self.log.store.logged_behind(self.read_to);
                self.ahead.extend(end.map(|(end, _)| LogEvent::Commit(end)));
            }
            M::GivesRolledBack => {
                let row_id = message.row.row_id;
                let is_behind_a_gap = row_id > self.last_row_id + 1;
                self.last_row_id = row_id;
                if is_behind_a_gap {
                    let mut ghost = message.clone();
                    ghost.id = MessageId::fresh();
                    ghost.row.row_id = row_id - 1;
                    self.ahead.push_back(LogEvent::Message(message));
                    return Some(LogEvent::Message(ghost));
                }
            }
            _ => {}
        }
        Some(LogEvent::Message(message))
    }
}

impl LogReader for WrongLogReader {
    async fn next(&mut self) -> Result<LogEvent, StoreError> {
        if let Some(event) = self.ahead.pop_front() {
            return Ok(event);
        }
        loop {
            let event = self.inner()?.next().await;
            if event.is_err() && self.log.has(M::NeverEnds) {
                std::future::pending::<()>().await;
            }
            let event = event?;
            if let LogEvent::Commit(end) = event {
                self.read_to = end;
            }
            if matches!(event, LogEvent::Commit(end) if end <= self.from) {
                continue;
            }
            if let Some(event) = self.spoilt(event).await {
                return Ok(event);
            }
        }
    }

    async fn confirm(&mut self, mut position: Position) -> Result<(), StoreError> {
        match self.log.mistake {
            Some(M::ForgetsPosition) => return Ok(()),
            Some(M::ConfirmsWhatWasRead) => position = position.max(self.read_to),
            Some(M::ConfirmsForOthers) => {
                self.log.store.with_log(|log| log.confirm(position));
                return Ok(());
            }
            Some(M::BreaksWhenDropped) => {
                let inner = self.inner.take();
                yield_now().await;
                self.inner = inner;
            }
            _ => {}
        }
        self.inner()?.confirm(position).await
    }

    async fn retained(&mut self) -> Result<Retained, StoreError> {
        if self.log.has(M::KeepsNothing) {
            return Ok(Retained::default());
        }
        self.inner()?.retained().await
    }

    fn adopted_to(&self) -> Position {
        match &self.inner {
            Some(inner) if !self.log.has(M::ForgetsAdoptions) => inner.adopted_to(),
            _ => Position(0),
        }
    }

    async fn close(self) {
        drop(self);
    }
}

impl Drop for WrongLogReader {
    fn drop(&mut self) {
        if self.log.has(M::KeepsReading) || !self.is_whole {
            mem::forget(self.inner.take());
        }
    }
}
