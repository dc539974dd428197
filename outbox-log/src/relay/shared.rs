//! What the relay of the log and its reading share: the window, and how the table adopts messages.

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

/// Messages that the table adopts at a time.
const ADOPTED_MAX: usize = 500;
/// How long an adoption waits for a message that others cannot see yet, and how often it asks.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
const SEEN_EVERY: Duration = Duration::from_millis(20);

/// Whether the table can come first for any aggregate. While it cannot, it need not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exceptions {
    pub(super) any: bool,
    /// Raised when an adoption begins and when it ends: a look that began before knows nothing of
    /// it.
    pub(super) adoptions: u64,
}

impl Default for Exceptions {
    fn default() -> Self {
        Self {
            // Nobody has looked yet.
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

    /// The answer of a look that began after this many adoptions.
    pub(super) fn looked(&mut self, any: bool, adoptions: u64) {
        self.any = any || self.adoptions != adoptions;
    }
}

/// What the relay of the log and its reading share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: LogConfig,
    window: Mutex<Window>,
    exceptions: Mutex<Exceptions>,
    pub(super) status: Mutex<LogStatus>,
    /// Something was read or decided, or the reading has ended.
    pub(super) news: Notify,
    /// Something was decided.
    pub(super) room: Notify,
    /// Held while messages are handed out, and while the table adopts everything: an earlier
    /// message must not change hands in between.
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
            // What an earlier reading has left comes again to the next.
            undecided: if status.reads { undecided } else { 0 },
            ..status
        }
    }

    /// Shows how the log stands. Called when that changes, and with each checkpoint.
    pub(super) fn report(&self) {
        telemetry::report(&self.status());
    }

    /// Something left the window.
    pub(super) fn room(&self) {
        self.room.notify_one();
    }

    /// Something left the window, so there is room for more, and what stood behind it may be handed
    /// out.
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

    /// Lets the table adopt these messages, and those before them in their aggregates. A crash
    /// before the answer leaves messages of which it is not known who has them; they come again,
    /// and the table is asked.
    pub(super) async fn adopt<L: MessageLog>(&self, log: &L, ids: &[MessageId]) -> Result<(), StoreError> {
        let messages = self.window().doubt_with_earlier(ids);
        for messages in messages.chunks(ADOPTED_MAX) {
            self.exceptions(Exceptions::adopts);
            let adopted = self.adopt_seen(log, messages).await;
            self.exceptions(Exceptions::adopts);
            adopted?;
        }
        // The relay of the table may be asleep.
        wake::notify_remote();
        Ok(())
    }

    /// In the order of the log: a message is adopted only when those before it are.
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
                    context: "a message of the log cannot be seen in the table yet",
                    waited: SEEN_WITHIN,
                });
            }
            left = unseen;
            sleep(SEEN_EVERY).await;
        }
    }

    /// How many messages and bytes of payloads the window takes, or `None` if it is full.
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
        // The end of a transaction that is larger than the window is read only when its first
        // messages are decided.
        if is_whole || self.room_left().is_none() {
            self.news.notify_waiters();
        }
    }
}

/// A lock whose state is whole even if a thread panicked while it held it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
