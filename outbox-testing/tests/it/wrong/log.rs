//! Message logs with one mistake each.

use std::collections::{HashSet, VecDeque};
use std::mem;
use std::time::Duration;

use outbox_core::log::{
    LogEvent, LogReader, Logged, LoggedMessage, Look, LookRequest, MessageLog, Position, Retained,
};
use outbox_core::message::MessageId;
use outbox_core::store::{
    MessageStatus, Pause, PurgeRequest, Purged, Selection, SetupKind, SetupProblem, StoreError,
};
use outbox_testing::{MemoryLog, MemoryLogReader, MemoryStore, Operator as _};
use time::OffsetDateTime;
use tokio::task::yield_now;

use LogMistake as M;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMistake {
    AlwaysComplains,
    RepeatsMessages,
    /// The reading delivers messages with a used attempt.
    MakesUpRows,
    /// The reading ends a transaction after each message.
    SplitsTransactions,
    GivesRolledBack,
    /// The reading reports no position until there is a message.
    SaysNothingAtFirst,
    /// The reading reports its position only at the beginning.
    OverlooksOthers,
    /// The reading loses an event if the wait for the event is dropped.
    LosesDroppedWaits,
    /// The log reports that it retains no bytes.
    KeepsNothing,
    /// Each opening takes the log from the current reader.
    SharesReading,
    /// A dropped reader keeps the log.
    KeepsReading,
    ForgetsPosition,
    /// The confirmation of a replaced reader reports success.
    ConfirmsForOthers,
    /// The reading waits forever after its connection breaks.
    NeverEnds,
    /// The opening after a loss deletes the messages of the lost log.
    DeletesWhatWasLost,
    /// A dropped opening keeps the log locked.
    LeavesHalfOpened,
    /// A dropped confirmation breaks the reading.
    BreaksWhenDropped,
    PutsNothingFirst,
    SeesNoExceptions,
    IsNeverFlooded,
    TellsAnotherTime,
    TakesAllForLogged,
    AdoptsInVain,
    RevivesDeadLetters,
    /// An adoption takes messages before the stored position.
    AdoptsWhatIsPassed,
    /// An adoption returns only newly adopted messages.
    TellsOnlyWhatItAdopted,
    /// An adoption never returns deleted messages.
    WaitsForTheDeleted,
    /// An adoption treats an invisible message as deleted.
    TakesUnseenForGone,
    /// A new reading does not report earlier adoptions.
    ForgetsAdoptions,
    /// A dropped adoption is applied partially.
    AdoptsOneByOne,
    /// The purge deletes messages after the stored position.
    PurgesWhatIsNotPassed,
    PurgesByNoAge,
}

#[derive(Debug, Clone)]
pub struct WrongLog {
    store: MemoryStore,
    inner: MemoryLog,
    mistake: LogMistake,
}

impl WrongLog {
    #[must_use]
    pub fn new(store: MemoryStore, mistake: LogMistake) -> Self {
        Self {
            inner: store.log(),
            store,
            mistake,
        }
    }

    fn with_status(&self, status: MessageStatus) -> HashSet<i64> {
        let rows = self.store.rows().into_iter();
        rows.filter(|row| row.status == status)
            .map(|row| row.row_id)
            .collect()
    }
}

impl MessageLog for WrongLog {
    type Reader = WrongLogReader;

    async fn preflight(&self) -> Result<Vec<SetupProblem>, StoreError> {
        if self.mistake == M::AlwaysComplains {
            return Err(StoreError::setup(SetupKind::Setting, "nothing is right", ""));
        }
        self.inner.preflight().await
    }

    async fn open(&self) -> Result<Option<WrongLogReader>, StoreError> {
        if self.mistake == M::SharesReading {
            self.inner.interrupt();
        }
        let logged = self.with_status(MessageStatus::Logged);
        let opened = self.inner.open().await?;
        if self.mistake == M::DeletesWhatWasLost {
            let pending = self.with_status(MessageStatus::Pending);
            for row_id in logged.intersection(&pending) {
                self.store.discard(*row_id);
            }
        }
        let mut reader = opened.map(|inner| WrongLogReader {
            log: self.clone(),
            inner: Some(inner),
            ahead: VecDeque::new(),
            last_row_id: 0,
            has_spoken: false,
            is_kept: matches!(self.mistake, M::KeepsReading | M::LeavesHalfOpened),
        });
        if self.mistake == M::LeavesHalfOpened
            && let Some(reader) = &mut reader
        {
            yield_now().await;
            reader.is_kept = false;
        }
        Ok(reader)
    }

    async fn written(&self) -> Result<Position, StoreError> {
        self.inner.written().await
    }

    async fn look(&self, request: LookRequest<'_>) -> Result<Look, StoreError> {
        let mut look = self.inner.look(request).await?;
        match self.mistake {
            M::PutsNothingFirst => look.first.clear(),
            M::SeesNoExceptions => look.any = false,
            M::IsNeverFlooded => look.is_flooded = false,
            M::TellsAnotherTime => look.now = OffsetDateTime::UNIX_EPOCH,
            M::TakesAllForLogged => {
                look.logged = request.messages.iter().map(|asked| asked.id).collect();
            }
            M::TakesUnseenForGone => look.unseen.clear(),
            _ => {}
        }
        Ok(look)
    }

    async fn adopt(&self, messages: &[Logged]) -> Result<Vec<MessageId>, StoreError> {
        let all = || messages.iter().map(|message| message.id).collect();
        match self.mistake {
            M::AdoptsInVain => Ok(all()),
            M::TakesUnseenForGone => {
                self.inner.adopt(messages).await?;
                Ok(all())
            }
            M::RevivesDeadLetters => {
                for message in messages {
                    self.store.retry(&Selection::id(message.id)).await?;
                }
                self.inner.adopt(messages).await
            }
            M::AdoptsWhatIsPassed => {
                let unpassed = |message: &Logged| Logged {
                    passed_from: Position(u64::MAX),
                    ..*message
                };
                let messages: Vec<Logged> = messages.iter().map(unpassed).collect();
                self.inner.adopt(&messages).await
            }
            M::TellsOnlyWhatItAdopted => {
                let look = LookRequest {
                    aggregates: &[],
                    messages,
                };
                let logged = self.inner.look(look).await?.logged;
                self.inner.adopt(messages).await?;
                Ok(logged)
            }
            M::WaitsForTheDeleted => {
                let held = self.inner.adopt(messages).await?;
                let rows = self.store.rows();
                let is_there = |id: &MessageId| rows.iter().any(|row| row.message.id == *id);
                Ok(held.into_iter().filter(is_there).collect())
            }
            M::AdoptsOneByOne => {
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
            M::PurgesByNoAge => request.older_than = Some(Duration::ZERO),
            M::PurgesWhatIsNotPassed => {
                for row_id in self.with_status(MessageStatus::Logged) {
                    self.store.discard(row_id);
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

#[derive(Debug)]
pub struct WrongLogReader {
    log: WrongLog,
    inner: Option<MemoryLogReader>,
    ahead: VecDeque<LogEvent>,
    last_row_id: i64,
    has_spoken: bool,
    /// Whether a drop keeps the log locked.
    is_kept: bool,
}

impl WrongLogReader {
    fn inner(&mut self) -> Result<&mut MemoryLogReader, StoreError> {
        self.inner.as_mut().ok_or_else(|| StoreError::Database {
            context: "the reading is broken",
            source: "a call was dropped".into(),
        })
    }

    async fn spoilt(&mut self, event: LogEvent) -> Result<Option<LogEvent>, StoreError> {
        let mut message = match event {
            LogEvent::Message(message) => message,
            LogEvent::Idle(_) => {
                let is_first = !mem::replace(&mut self.has_spoken, true);
                let is_lost = match self.log.mistake {
                    M::SaysNothingAtFirst => is_first,
                    M::OverlooksOthers => !is_first,
                    _ => false,
                };
                return Ok((!is_lost).then_some(event));
            }
            LogEvent::Commit(_) => return Ok(Some(event)),
        };
        match self.log.mistake {
            M::LosesDroppedWaits => yield_now().await,
            M::RepeatsMessages => self.ahead.push_back(LogEvent::Message(message.clone())),
            M::MakesUpRows => message.row.attempts = 1,
            M::SplitsTransactions => {
                let mut messages = vec![message];
                loop {
                    match self.inner()?.next().await? {
                        LogEvent::Message(message) => messages.push(message),
                        end => {
                            let split = messages.into_iter().map(LogEvent::Message);
                            self.ahead
                                .extend(split.flat_map(|message| [message, end.clone()]));
                            return Ok(self.ahead.pop_front());
                        }
                    }
                }
            }
            M::GivesRolledBack => self.add_the_one_before(&message),
            _ => {}
        }
        self.ahead.push_back(LogEvent::Message(message));
        Ok(self.ahead.pop_front())
    }

    fn add_the_one_before(&mut self, message: &LoggedMessage) {
        let row_id = message.row.row_id;
        let last_row_id = mem::replace(&mut self.last_row_id, row_id);
        if row_id > last_row_id + 1 {
            let mut rolled_back = message.clone();
            rolled_back.id = MessageId::fresh();
            rolled_back.row.row_id = row_id - 1;
            self.ahead.push_back(LogEvent::Message(rolled_back));
        }
    }
}

impl LogReader for WrongLogReader {
    async fn next(&mut self) -> Result<LogEvent, StoreError> {
        if let Some(event) = self.ahead.pop_front() {
            return Ok(event);
        }
        loop {
            let event = self.inner()?.next().await;
            if event.is_err() && self.log.mistake == M::NeverEnds {
                std::future::pending::<()>().await;
            }
            if let Some(event) = self.spoilt(event?).await? {
                return Ok(event);
            }
        }
    }

    async fn confirm(&mut self, position: Position) -> Result<(), StoreError> {
        match self.log.mistake {
            M::ForgetsPosition => return Ok(()),
            M::ConfirmsForOthers => {
                let _refused = self.inner()?.confirm(position).await;
                return Ok(());
            }
            M::BreaksWhenDropped => {
                let inner = self.inner.take();
                yield_now().await;
                self.inner = inner;
            }
            _ => {}
        }
        self.inner()?.confirm(position).await
    }

    async fn retained(&mut self) -> Result<Retained, StoreError> {
        if self.log.mistake == M::KeepsNothing {
            return Ok(Retained::default());
        }
        self.inner()?.retained().await
    }

    fn adopted_to(&self) -> Position {
        match &self.inner {
            Some(inner) if self.log.mistake != M::ForgetsAdoptions => inner.adopted_to(),
            _ => Position(0),
        }
    }

    async fn close(self) {
        drop(self);
    }
}

impl Drop for WrongLogReader {
    fn drop(&mut self) {
        if self.is_kept {
            mem::forget(self.inner.take());
        }
    }
}
