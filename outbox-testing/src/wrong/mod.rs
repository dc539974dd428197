//! Message logs with one mistake each, also for the simulation.

mod mistake;
mod reader;

use time::OffsetDateTime;
use tokio::task::yield_now;

use crate::{MemoryLog, MemoryStore, Operator as _};
use outbox_core::log::{Logged, Look, LookRequest, MessageLog, Position};
use outbox_core::message::MessageId;
use outbox_core::store::{
    MessageStatus, Pause, PurgeRequest, Purged, Selection, SetupKind, SetupProblem, StoreError,
};

pub use mistake::LogMistake;
pub use reader::WrongLogReader;

use LogMistake as M;

/// A log with at most one mistake.
#[derive(Debug, Clone)]
pub struct WrongLog {
    store: MemoryStore,
    inner: MemoryLog,
    mistake: Option<LogMistake>,
}

impl WrongLog {
    /// Wraps the log of a store, as created by [`MemoryStore::log`].
    #[must_use]
    pub fn new(store: MemoryStore, mistake: impl Into<Option<LogMistake>>) -> Self {
        Self {
            inner: store.log(),
            store,
            mistake: mistake.into(),
        }
    }

    fn has(&self, mistake: LogMistake) -> bool {
        self.mistake == Some(mistake)
    }
}

impl MessageLog for WrongLog {
    type Reader = WrongLogReader;

    async fn preflight(&self) -> Result<Vec<SetupProblem>, StoreError> {
        if self.has(M::AlwaysComplains) {
            return Err(StoreError::setup(SetupKind::Setting, "nothing is right", ""));
        }
        self.inner.preflight().await
    }

    async fn open(&self) -> Result<Option<WrongLogReader>, StoreError> {
        match self.mistake {
            Some(M::SharesReading) => self.inner.interrupt(),
            Some(M::AdoptsNothingThatWasLost) => {
                self.store
                    .with_log(|log| log.stored = log.stored.max(log.freed()));
            }
            _ => {}
        }
        let opened = self.inner.open().await?;
        let reader = opened.map(|inner| WrongLogReader::new(self, inner));
        if self.has(M::LeavesHalfOpened) && reader.is_some() {
            yield_now().await;
            return Ok(reader.map(WrongLogReader::whole));
        }
        if self.has(M::StartsAtTheEnd) {
            let written = self.store.written()?;
            self.store.with_log(|log| log.confirm(written));
            return Ok(reader.map(|reader| reader.from(written)));
        }
        Ok(reader)
    }

    async fn written(&self) -> Result<Position, StoreError> {
        let Position(written) = self.inner.written().await?;
        let ahead = u64::from(self.has(M::WrittenIsAhead));
        Ok(Position(written + ahead))
    }

    async fn look(&self, request: LookRequest<'_>) -> Result<Look, StoreError> {
        let mut look = self.inner.look(request).await?;
        match self.mistake {
            Some(M::PutsNothingFirst) => look.first.clear(),
            Some(M::SeesNoExceptions) => look.any = false,
            Some(M::IsNeverFlooded) => look.is_flooded = false,
            Some(M::TellsAnotherTime) => look.now = OffsetDateTime::UNIX_EPOCH,
            Some(M::TakesAllForLogged) => {
                look.logged = request.messages.iter().map(|asked| asked.id).collect();
            }
            Some(M::TakesUnseenForGone) => look.unseen.clear(),
            _ => {}
        }
        Ok(look)
    }

    async fn adopt(&self, messages: &[Logged]) -> Result<Vec<MessageId>, StoreError> {
        let all = || messages.iter().map(|message| message.id).collect();
        match self.mistake {
            Some(M::AdoptsInVain) => Ok(all()),
            Some(M::TakesUnseenForGone) => {
                self.inner.adopt(messages).await?;
                Ok(all())
            }
            Some(M::RevivesDeadLetters) => {
                for message in messages {
                    self.store.retry(&Selection::id(message.id)).await?;
                }
                self.inner.adopt(messages).await
            }
            Some(M::AdoptsWhatIsPassed) => {
                let unpassed = |message: &Logged| Logged {
                    passed_from: Position(u64::MAX),
                    ..*message
                };
                let messages: Vec<Logged> = messages.iter().map(unpassed).collect();
                self.inner.adopt(&messages).await
            }
            Some(M::TellsOnlyWhatItAdopted) => {
                let look = LookRequest {
                    aggregates: &[],
                    messages,
                };
                let logged = self.inner.look(look).await?.logged;
                self.inner.adopt(messages).await?;
                Ok(logged)
            }
            Some(M::WaitsForTheDeleted) => {
                let held = self.inner.adopt(messages).await?;
                let rows = self.store.rows();
                let is_there = |id: &MessageId| rows.iter().any(|row| row.message.id == *id);
                Ok(held.into_iter().filter(is_there).collect())
            }
            Some(M::AdoptsOneByOne) => {
                let mut adopted = Vec::new();
                for message in messages {
                    adopted.extend(self.inner.adopt(std::slice::from_ref(message)).await?);
                    yield_now().await;
                }
                Ok(adopted)
            }
            _ => self.inner.adopt(messages).await,
        }
    }

    async fn purge(&self, mut request: PurgeRequest) -> Result<Purged, StoreError> {
        match self.mistake {
            Some(M::PurgesByNoAge) => request.older_than = Some(std::time::Duration::ZERO),
            Some(M::PurgesWhatIsNotPassed) => {
                let bound = self.store.now() - request.older_than.unwrap_or_default();
                let is_old = |row: &crate::StoredRow| {
                    row.status == MessageStatus::Logged && row.message.created_at < bound
                };
                for row in self.store.rows().iter().filter(|row| is_old(row)) {
                    self.store.discard(row.row_id);
                }
            }
            _ => {}
        }
        self.inner.purge(request).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.inner.pauses().await
    }
}
