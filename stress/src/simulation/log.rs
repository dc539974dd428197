//! The connection from a simulated log relay to the log, with the faults of the store's connection.
//! A call is one step, which the checker observes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use outbox_core::log::{LogEvent, LogReader, Logged, Look, LookRequest, MessageLog, Position, Retained};
use outbox_core::message::MessageId;
use outbox_core::relay::Retention;
use outbox_core::store::{
    MessageStatus, OutboxStore as _, Pause, PurgeRequest, Purged, SetupProblem, StoreError,
};
use outbox_testing::{MemoryLog, MemoryLogReader};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::history::Life;
use super::plan::{self, Cut};
use super::store::SimStore;
use super::world::{Shared, World};
use super::{Wrong, maintenance, wrong};

const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(super) struct SimLog {
    store: SimStore,
    log: MemoryLog,
}

impl SimLog {
    pub(super) fn new(world: &Arc<World>, log: &MemoryLog, life: Life) -> Self {
        let world = world.clone();
        Self {
            store: SimStore { world, life },
            log: log.clone(),
        }
    }

    async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&World, &mut Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let waited = self.store.world.plan.store_timeout;
        let call = self.store.call(name, |world, shared, _| work(world, shared));
        let context = name;
        timeout(waited, call)
            .await
            .unwrap_or(Err(StoreError::Silent { context, waited }))
    }
}

fn logged(world: &World) -> BTreeSet<MessageId> {
    let rows = world.store.rows().into_iter();
    rows.filter(|row| row.status == MessageStatus::Logged)
        .map(|row| row.message.id)
        .collect()
}

fn note_position(world: &World, shared: &mut Shared) {
    let stored = world.log.as_ref().map_or(Position(0), |log| log.stored());
    let passed = shared.checker.passed_by(stored);
    if !passed.is_empty() {
        shared.checker.passed(&passed, &logged(world));
    }
}

impl MessageLog for SimLog {
    type Reader = SimLogReader;

    async fn preflight(&self) -> Result<Vec<SetupProblem>, StoreError> {
        self.call("check the log", |_, _| Ok(Vec::new())).await
    }

    async fn open(&self) -> Result<Option<SimLogReader>, StoreError> {
        let (log, life) = (self.log.clone(), self.store.life);
        let opened = self.call("open the log", move |world, shared| {
            if shared.log_kept_by.is_some_and(|keeper| keeper != life) {
                return Ok(None);
            }
            let mut opened = wrong::now(log.open())?;
            shared.log_kept_by = None;
            if let Some(reader) = &mut opened {
                if world.wrong == Wrong::ForgetsItsPlace {
                    wrong::now(reader.confirm(wrong::now(log.written())?))?;
                }
                shared.checker.opened_log(life);
                note_position(world, shared);
            }
            Ok(opened)
        });
        Ok(opened.await?.map(|inner| SimLogReader {
            adopted_to: inner.adopted_to(),
            log: self.clone(),
            inner: Arc::new(Mutex::new(inner)),
            read_to: Position(0),
            next: VecDeque::new(),
            is_broken: false,
        }))
    }

    async fn written(&self) -> Result<Position, StoreError> {
        let log = self.log.clone();
        self.call("ask for the end of the log", move |_, _| {
            wrong::now(log.written())
        })
        .await
    }

    async fn look(&self, request: LookRequest<'_>) -> Result<Look, StoreError> {
        let log = self.log.clone();
        let (aggregates, messages) = (request.aggregates.to_vec(), request.messages.to_vec());
        self.call("look at the table", move |_, _| {
            wrong::now(log.look(LookRequest {
                aggregates: &aggregates,
                messages: &messages,
            }))
        })
        .await
    }

    async fn adopt(&self, messages: &[Logged]) -> Result<Vec<MessageId>, StoreError> {
        let (log, life, messages) = (self.log.clone(), self.store.life, messages.to_vec());
        self.call("adopt messages", move |world, shared| {
            if world.wrong == Wrong::AdoptsInVain {
                return Ok(messages.iter().map(|message| message.id).collect());
            }
            let before = logged(world);
            let answer = wrong::now(log.adopt(&messages))?;
            let after = logged(world);
            let adopted: Vec<MessageId> = before.difference(&after).copied().collect();
            shared.checker.adopted(life, &adopted);
            Ok(answer)
        })
        .await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.store.pauses().await
    }

    async fn purge(&self, mut request: PurgeRequest) -> Result<Purged, StoreError> {
        if let Retention::KeepFor(time) = self.store.world.plan.retention {
            request.older_than = Some(time);
        }
        let log = self.log.clone();
        self.call("purge the log", move |world, shared| {
            maintenance::purge_by(world, shared, request, |_| wrong::now(log.purge(request)))
        })
        .await
    }
}

#[derive(Debug)]
pub(super) struct SimLogReader {
    log: SimLog,
    adopted_to: Position,
    inner: Arc<Mutex<MemoryLogReader>>,
    read_to: Position,
    /// Events that arrived after their caller was dropped.
    next: VecDeque<LogEvent>,
    is_broken: bool,
}

impl SimLogReader {
    fn broken() -> StoreError {
        StoreError::Database {
            context: "read the log",
            source: Box::from("simulated fault"),
        }
    }

    fn is_cut_off(&self) -> bool {
        let SimStore { world, life } = &self.log.store;
        let shared = world.shared();
        shared.store_is_down || shared.cut_of(*life) == Some(Cut::Store)
    }

    fn delay(&self) -> Option<Duration> {
        let world = &self.log.store.world;
        let mut shared = world.shared();
        let (is_bad, plan) = (!shared.is_calm, &world.plan.store);
        let rng = &mut shared.rng;
        if is_bad && plan::chance(rng, plan.fails / 2.0) {
            return None;
        }
        if is_bad && plan::chance(rng, plan.is_slow) {
            return Some(plan::ms(rng, 50..=1500));
        }
        let max = plan.latency_max.as_micros() as u64;
        Some(if rng.u8(..) < 64 {
            Duration::from_micros(rng.u64(0..=max))
        } else {
            Duration::ZERO
        })
    }

    async fn read(&mut self) -> Result<LogEvent, StoreError> {
        self.arriving().await?;
        match self.delay() {
            None => return Err(Self::broken()),
            Some(Duration::ZERO) => {}
            Some(late) => sleep(late).await,
        }
        self.next.pop_front().ok_or_else(Self::broken)
    }

    async fn arriving(&mut self) -> Result<(), StoreError> {
        while self.next.is_empty() {
            if self.is_cut_off() {
                sleep(self.log.store.world.plan.store_timeout).await;
                return Err(Self::broken());
            }
            let mut inner = self.inner.lock().await;
            let Ok(event) = timeout(LOOK_EVERY, inner.next()).await else {
                continue;
            };
            let mut events = vec![event?];
            if self.log.store.world.wrong == Wrong::SplitsTransactions
                && let [LogEvent::Message(_)] = events[..]
            {
                let end = loop {
                    match inner.next().await? {
                        LogEvent::Message(message) => events.push(LogEvent::Message(message)),
                        end => break end,
                    }
                };
                events = events
                    .into_iter()
                    .flat_map(|message| [message, end.clone()])
                    .collect();
            }
            self.next.extend(events);
        }
        Ok(())
    }
}

impl LogReader for SimLogReader {
    async fn next(&mut self) -> Result<LogEvent, StoreError> {
        let event = self.read().await.inspect_err(|_| self.is_broken = true)?;
        match &event {
            LogEvent::Message(message) => {
                let SimStore { world, life } = &self.log.store;
                world.shared().checker.given(*life, message.id);
            }
            LogEvent::Commit(end) => self.read_to = *end,
            LogEvent::Idle(_) => {}
        }
        Ok(event)
    }

    async fn confirm(&mut self, position: Position) -> Result<(), StoreError> {
        let (inner, read_to) = (self.inner.clone(), self.read_to);
        let confirmed = self.log.call("confirm a position", move |world, shared| {
            let mut reader = inner.try_lock().map_err(|_| Self::broken())?;
            let position = match world.wrong {
                Wrong::PassesUndecided => position.max(read_to),
                _ => position,
            };
            wrong::now(reader.confirm(position))?;
            note_position(world, shared);
            Ok(())
        });
        confirmed.await.inspect_err(|_| self.is_broken = true)
    }

    async fn retained(&mut self) -> Result<Retained, StoreError> {
        let inner = self.inner.clone();
        self.log
            .call("ask what the log keeps", move |_, _| {
                let mut reader = inner.try_lock().map_err(|_| Self::broken())?;
                wrong::now(reader.retained())
            })
            .await
    }

    fn adopted_to(&self) -> Position {
        self.adopted_to
    }

    async fn close(self) {
        let SimStore { world, life } = &self.log.store;
        if world.wrong == Wrong::KeepsTheLog && !self.is_broken {
            world.shared().log_kept_by = Some(*life);
        }
    }
}
