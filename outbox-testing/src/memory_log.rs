//! The log of an in-memory outbox.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::log::{
    LogEvent, LogReader, Logged, LoggedMessage, Look, LookRequest, MessageLog, Position, Retained,
};
use outbox_core::message::MessageId;
use outbox_core::store::{OutboxStore as _, Pause, PurgeRequest, Purged, SetupProblem, StoreError};
use tokio::sync::Notify;

use super::MemoryStore;

/// The log of a [`MemoryStore`], created by [`MemoryStore::log`]. Clones share their state.
#[derive(Debug, Clone)]
pub struct MemoryLog {
    store: MemoryStore,
}

impl MemoryStore {
    /// Assigns new messages to the log, for a log relay.
    #[must_use]
    pub fn log(&self) -> MemoryLog {
        self.with_log(|log| log.set_on(true));
        MemoryLog { store: self.clone() }
    }
}

impl MemoryLog {
    /// Ends the open reading with an error, as a broken connection does.
    pub fn interrupt(&self) {
        self.store.with_log(|log| {
            log.reader = None;
            log.news.notify_waiters();
        });
    }

    /// Replaces the log by an empty one.
    pub fn lose(&self) {
        self.store.with_log(|log| log.replace());
    }

    /// Delays each opening of the log, as a replication slot that waits for open transactions does.
    pub fn open_slowly(&self, takes: Duration) {
        self.store.with_log(|log| log.opens_in = takes);
    }

    /// Delays each measurement of the retained log, as an overloaded database does.
    pub fn measure_slowly(&self, takes: Duration) {
        self.store.with_log(|log| log.measures_in = takes);
    }

    /// Sets the reported limit of the retained log. The log does not enforce the limit.
    pub fn tell_limit(&self, keeps_max: u64) {
        self.store.with_log(|log| log.keeps_max = Some(keeps_max));
    }

    /// Hides messages from the next `questions` table queries, as if their commit waited for a
    /// standby.
    pub fn hide_next(&self, questions: u32) {
        self.store.with_log(|log| log.hidden = questions);
    }

    /// Advances the log position without messages.
    pub fn write_elsewhere(&self, steps: u64) {
        self.store.with_log(|log| log.write(steps));
    }

    /// How often the log was opened.
    #[must_use]
    pub fn openings(&self) -> u64 {
        self.store.with_log(|log| log.readings)
    }

    /// The stored position. All earlier messages are published or pending.
    #[must_use]
    pub fn stored(&self) -> Position {
        self.store.with_log(|log| log.stored)
    }
}

impl MessageLog for MemoryLog {
    type Reader = MemoryLogReader;

    async fn preflight(&self) -> Result<Vec<SetupProblem>, StoreError> {
        Ok(Vec::new())
    }

    async fn open(&self) -> Result<Option<MemoryLogReader>, StoreError> {
        let opens_in = self.store.with_log(|log| log.opens_in);
        if !opens_in.is_zero() {
            tokio::time::sleep(opens_in).await;
        }
        let opened = self.store.open_log()?;
        let news = self.store.with_log(|log| log.news.clone());
        Ok(opened.map(|(number, position, adopted_to)| MemoryLogReader {
            store: self.store.clone(),
            number,
            position,
            adopted_to,
            is_told: false,
            rest: (Vec::new(), None),
            news,
        }))
    }

    async fn written(&self) -> Result<Position, StoreError> {
        self.store.written()
    }

    async fn look(&self, request: LookRequest<'_>) -> Result<Look, StoreError> {
        self.store.look(request)
    }

    async fn adopt(&self, messages: &[Logged]) -> Result<Vec<MessageId>, StoreError> {
        self.store.adopt(messages)
    }

    async fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        self.store.purge_logged(request)
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.store.pauses().await
    }
}

/// Reads a [`MemoryLog`].
#[derive(Debug)]
pub struct MemoryLogReader {
    store: MemoryStore,
    number: u64,
    position: Position,
    adopted_to: Position,
    is_told: bool,
    /// The unread messages of the current transaction in reverse order, and the position of the
    /// transaction.
    rest: (Vec<LoggedMessage>, Option<Position>),
    news: Arc<Notify>,
}

impl MemoryLogReader {
    fn check(&self) -> Result<(), StoreError> {
        match self.store.with_log(|log| log.reader) {
            Some(number) if number == self.number => Ok(()),
            _ => Err(StoreError::Database {
                context: "the reading was interrupted",
                source: "injected fault".into(),
            }),
        }
    }

    fn event(&mut self) -> Option<LogEvent> {
        if let Some(message) = self.rest.0.pop() {
            return Some(LogEvent::Message(message));
        }
        if let Some(end) = self.rest.1.take() {
            self.position = end;
            return Some(LogEvent::Commit(end));
        }
        let (end, mut messages) = self.store.logged_behind(self.position)?;
        messages.reverse();
        self.rest = (messages, Some(end));
        self.event()
    }
}

impl LogReader for MemoryLogReader {
    async fn next(&mut self) -> Result<LogEvent, StoreError> {
        loop {
            let news = self.news.clone();
            let notified = news.notified();
            tokio::pin!(notified);
            // The wait is registered before the log is read, so that no write is missed.
            notified.as_mut().enable();
            self.check()?;
            if let Some(event) = self.event() {
                return Ok(event);
            }
            let written = self.store.with_log(|log| log.written());
            if written > self.position || !self.is_told {
                (self.position, self.is_told) = (written, true);
                return Ok(LogEvent::Idle(written));
            }
            notified.await;
        }
    }

    async fn confirm(&mut self, position: Position) -> Result<(), StoreError> {
        self.check()?;
        self.store.with_log(|log| log.confirm(position));
        Ok(())
    }

    async fn retained(&mut self) -> Result<Retained, StoreError> {
        self.check()?;
        let (takes, bytes, max) = self
            .store
            .with_log(|log| (log.measures_in, log.retained(), log.keeps_max));
        tokio::time::sleep(takes).await;
        Ok(Retained {
            bytes,
            safe: max.map(|max| max.saturating_sub(bytes)),
        })
    }

    fn adopted_to(&self) -> Position {
        self.adopted_to
    }

    async fn close(self) {
        drop(self);
    }
}

impl Drop for MemoryLogReader {
    fn drop(&mut self) {
        self.store.with_log(|log| {
            if log.reader == Some(self.number) {
                log.reader = None;
            }
        });
    }
}
