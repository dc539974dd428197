//! State shared by the relay of the log and its reading.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::log::{LogEvent, Logged, MessageLog};
use outbox_core::{MessageId, StoreError, wake};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::window::Window;
use super::{LogConfig, LogStatus};
use crate::telemetry;

const ADOPTED_MAX: usize = 500;
const SEEN_WITHIN: Duration = Duration::from_secs(2);
const SEEN_EVERY: Duration = Duration::from_millis(20);

/// Whether the table may hold pending messages or blocked aggregates. If not, the table is not
/// queried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exceptions {
    pub(super) any: bool,
    /// Incremented before and after messages become pending. A table query that overlaps such a
    /// change is outdated.
    pub(super) adoptions: u64,
}

impl Default for Exceptions {
    fn default() -> Self {
        Self {
            any: true,
            adoptions: 0,
        }
    }
}

impl Exceptions {
    pub(super) fn adopts(&mut self) {
        self.any = true;
        self.adoptions += 1;
    }

    /// `adoptions`: the counter when the query began.
    pub(super) fn looked(&mut self, any: bool, adoptions: u64) {
        self.any = any || self.adoptions != adoptions;
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: LogConfig,
    window: Mutex<Window>,
    exceptions: Mutex<Exceptions>,
    pub(super) status: Mutex<LogStatus>,
    pub(super) news: Notify,
    pub(super) room: Notify,
    /// Held during a fetch, and while all messages become pending: an earlier message must not
    /// become pending during the fetch of a later one.
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl Shared {
    pub(super) fn new(config: LogConfig) -> Self {
        Self {
            config,
            window: Mutex::default(),
            exceptions: Mutex::default(),
            status: Mutex::default(),
            news: Notify::new(),
            room: Notify::new(),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn window(&self) -> MutexGuard<'_, Window> {
        lock(&self.window)
    }

    pub(super) fn exceptions<R>(&self, work: impl FnOnce(&mut Exceptions) -> R) -> R {
        work(&mut lock(&self.exceptions))
    }

    pub(super) fn status(&self) -> LogStatus {
        let (decided, undecided) = {
            let window = self.window();
            (window.decided(), window.len())
        };
        let status = *lock(&self.status);
        LogStatus {
            decided,
            undecided: if status.reads { undecided } else { 0 },
            ..status
        }
    }

    pub(super) fn report(&self) {
        telemetry::report(&self.status());
    }

    pub(super) fn room(&self) {
        self.room.notify_one();
    }

    pub(super) fn changed(&self) {
        self.room.notify_one();
        self.news.notify_waiters();
    }

    pub(super) fn published(&self, ids: impl Iterator<Item = MessageId>) {
        {
            let mut window = self.window();
            ids.for_each(|id| window.published(id));
        }
        self.changed();
    }

    fn adopted(&self, ids: impl Iterator<Item = MessageId>) {
        {
            let mut window = self.window();
            ids.for_each(|id| window.adopted(id));
        }
        self.changed();
    }

    pub(super) fn set_waits_for_table(&self, waits: bool) {
        lock(&self.status).waits_for_table = waits;
    }

    /// Makes the messages `ids`, and earlier messages of their aggregates, pending in the table. If
    /// the process crashes before the reply, the next reader receives the messages and queries
    /// their status.
    pub(super) async fn adopt<L: MessageLog>(&self, log: &L, ids: &[MessageId]) -> Result<(), StoreError> {
        let messages = self.window().doubt_with_earlier(ids);
        for messages in messages.chunks(ADOPTED_MAX) {
            self.exceptions(Exceptions::adopts);
            let adopted = self.adopt_seen(log, messages).await;
            self.exceptions(Exceptions::adopts);
            adopted?;
        }
        wake::notify_remote();
        Ok(())
    }

    /// Makes messages pending in log order: first all earlier messages, then a message.
    async fn adopt_seen<L: MessageLog>(&self, log: &L, messages: &[Logged]) -> Result<(), StoreError> {
        let until = Instant::now() + SEEN_WITHIN;
        let mut left: Vec<Logged> = messages.to_vec();
        loop {
            let seen: HashSet<MessageId> = log.adopt(&left).await?.into_iter().collect();
            let (adopted, unseen): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|message| seen.contains(&message.id));
            self.adopted(adopted.iter().map(|message| message.id));
            if unseen.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(StoreError::Silent {
                    context: "a message of the log is not visible in the table yet",
                    waited: SEEN_WITHIN,
                });
            }
            left = unseen;
            sleep(SEEN_EVERY).await;
        }
    }

    pub(super) fn room_left(&self) -> Option<(usize, usize)> {
        let window = self.window();
        let messages = self.config.window.saturating_sub(window.len());
        let bytes = self.config.window_bytes.checked_sub(window.bytes())?;
        (messages > 0).then_some((messages, bytes))
    }

    pub(super) fn take(&self, events: Vec<LogEvent>) {
        let mut is_whole = false;
        {
            let mut window = self.window();
            for event in events {
                is_whole |= !matches!(event, LogEvent::Message(_));
                match event {
                    LogEvent::Message(message) => window.push(message),
                    LogEvent::Commit(end) => window.commit(end),
                    LogEvent::Idle(position) => window.idle(position),
                }
            }
        }
        // A transaction larger than the memory bound can be read to its end only after its first
        // messages are published.
        if is_whole || self.room_left().is_none() {
            self.news.notify_waiters();
        }
    }
}

/// The state is complete even if a thread panicked with the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
