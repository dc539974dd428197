//! Reads the log in its own task, and stores the position.
//!
//! Invariants: there is at most one reading; the messages in memory belong to this reading. A
//! position is stored before the log receives it, so a log with a later position is another log.
//! Dropping [`Readings`] ends the task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::log::source::SecondSource;
use outbox_core::log::{LogEvent, LogReader, MessageLog, Position, Retained};
use outbox_core::store::within;
use outbox_core::{StoreError, describe};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::opener::Opening;
use super::shared::{Exceptions, Shared, lock};

const RETAINED_EVERY: Duration = Duration::from_secs(5);
/// Interval of storing a position that moves without messages: storing the position itself writes
/// WAL.
const IDLE_EVERY: Duration = Duration::from_secs(30);
const CALL_MAX: Duration = Duration::from_secs(30);
const CLOSE_MAX: Duration = Duration::from_millis(500);
const AT_ONCE: usize = 64;
const AT_ONCE_BYTES: usize = 256 << 10;

pub(super) struct Readings<L: MessageLog> {
    log: Arc<L>,
    shared: Arc<Shared>,
    source: SecondSource,
    state: Mutex<Option<Reading>>,
    opening: Opening<L::Reader>,
    /// Number of the last reading, locked while a reading is opened.
    last: tokio::sync::Mutex<i64>,
}

#[derive(Debug)]
struct Reading {
    number: i64,
    stop: CancellationToken,
    has_ended: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<L: MessageLog> Readings<L> {
    pub(super) fn new(log: Arc<L>, shared: Arc<Shared>, source: SecondSource) -> Self {
        Self {
            log,
            shared,
            source,
            state: Mutex::new(None),
            opening: Opening::new(),
            last: tokio::sync::Mutex::new(0),
        }
    }

    pub(super) fn current(&self) -> Option<i64> {
        let state = lock(&self.state);
        let reading = state.as_ref()?;
        (!reading.has_ended.load(Ordering::Acquire)).then_some(reading.number)
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.current() {
            Some(_) => Ok(()),
            None => Err(StoreError::Database {
                context: "the log is not being read",
                source: "its reading has ended".into(),
            }),
        }
    }

    /// Begins a reading unless there is a reading, and returns its number. Returns `None` if
    /// another relay reads.
    ///
    /// Cancel-safe: a reader being opened is kept for the next call, for up to the lease time.
    pub(super) async fn open(&self, lease_ttl: Duration) -> Result<Option<i64>, StoreError> {
        let mut last = self.last.lock().await;
        if let Some(current) = self.current() {
            return Ok(Some(current));
        }
        lock(&self.state).take();
        let log = self.log.clone();
        let opened = self
            .opening
            .opened(lease_ttl, || async move { log.open().await })
            .await;
        let Some(reader) = opened? else {
            lock(&self.shared.status).stands_by = true;
            self.shared.report();
            return Ok(None);
        };
        self.shared.window().begin(reader.adopted_to());
        self.shared.exceptions(Exceptions::adopts);
        *last += 1;
        *lock(&self.state) = Some(self.begin(reader, *last));
        tracing::info!("the relay reads the log");
        Ok(Some(*last))
    }

    fn begin(&self, reader: L::Reader, number: i64) -> Reading {
        let (stop, has_ended) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        let running = Running {
            log: self.log.clone(),
            shared: self.shared.clone(),
            source: self.source.clone(),
            reader,
            retained_at: Instant::now(),
            stored: Position(0),
            stored_at: Instant::now(),
        };
        {
            let mut status = lock(&self.shared.status);
            (status.reads, status.stands_by) = (true, false);
            (status.retained, status.adopts) = (None, false);
        }
        self.shared.report();
        let (stopped, ended) = (stop.clone(), has_ended.clone());
        let task = tokio::spawn(async move { running.run(stopped, ended).await });
        Reading {
            number,
            stop,
            has_ended,
            task,
        }
    }

    pub(super) async fn close(&self) {
        self.opening.end();
        let reading = lock(&self.state).take();
        if let Some(mut reading) = reading {
            reading.stop.cancel();
            if timeout(CLOSE_MAX, &mut reading.task).await.is_err() {
                tracing::debug!("the reading of the log did not end in time and is dropped");
            }
        }
        lock(&self.shared.status).reads = false;
        self.shared.report();
    }
}

struct Running<L: MessageLog> {
    log: Arc<L>,
    shared: Arc<Shared>,
    source: SecondSource,
    reader: L::Reader,
    retained_at: Instant,
    stored: Position,
    stored_at: Instant,
}

impl<L: MessageLog> Running<L> {
    async fn run(mut self, stop: CancellationToken, has_ended: Arc<AtomicBool>) {
        match self.read(&stop).await {
            Ok(()) => {
                // Without this position, the next reader would receive the last published messages
                // again.
                if let Err(error) = self.checkpoint().await {
                    tracing::debug!(error = %describe(&error), "the position could not be stored");
                }
            }
            Err(error) => {
                self.source.interrupt();
                tracing::warn!(error = %describe(&error), "the log cannot be read; reopening it");
            }
        }
        lock(&self.shared.status).reads = false;
        self.shared.report();
        has_ended.store(true, Ordering::Release);
        self.shared.news.notify_waiters();
        self.reader.close().await;
    }

    async fn read(&mut self, stop: &CancellationToken) -> Result<(), StoreError> {
        let mut checkpoints = interval(self.shared.config.checkpoint_every);
        checkpoints.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room = self.shared.room_left();
            tokio::select! {
                // The `select!` is biased, so that a simulation can repeat a run. A busy log must
                // not delay the checkpoint.
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = checkpoints.tick() => {
                    self.checkpoint().await?;
                    self.watch_retained().await?;
                    self.shared.report();
                    // The log is read before the next checkpoint, however long this checkpoint
                    // took.
                    checkpoints.reset();
                }
                event = self.reader.next(), if room.is_some() => self.take(event?, room.unwrap_or_default())?,
                () = self.shared.room.notified(), if room.is_none() => {}
            }
        }
    }

    fn take(&mut self, first: LogEvent, room: (usize, usize)) -> Result<(), StoreError> {
        let (most, bytes_max) = (room.0.min(AT_ONCE), room.1.min(AT_ONCE_BYTES));
        let mut bytes = first.payload();
        let mut events = vec![first];
        let mut ended = Ok(());
        while events.len() < most && bytes < bytes_max {
            match self.reader.next().now_or_never() {
                Some(Ok(event)) => {
                    bytes = bytes.saturating_add(event.payload());
                    events.push(event);
                }
                Some(Err(error)) => {
                    ended = Err(error);
                    break;
                }
                None => break,
            }
        }
        self.shared.take(events);
        ended
    }

    /// Stores the position before which all messages are published or pending, then confirms this
    /// position to the log. After a crash in between, the log only retains more.
    async fn checkpoint(&mut self) -> Result<(), StoreError> {
        let (decided, has_messages) = {
            let window = self.shared.window();
            (window.decided(), window.has_news(self.stored))
        };
        if decided > self.stored && (has_messages || self.stored_at.elapsed() >= IDLE_EVERY) {
            answered(self.reader.confirm(decided)).await?;
            (self.stored, self.stored_at) = (decided, Instant::now());
            self.shared.window().stored();
        }
        Ok(())
    }

    /// Checks how much disk the log retains. While the log retains too much, read messages become
    /// pending, so that the log does not fill the database's disk.
    async fn watch_retained(&mut self) -> Result<(), StoreError> {
        if Instant::now() < self.retained_at {
            return Ok(());
        }
        let retained: Retained = answered(self.reader.retained()).await?;
        let max = self.shared.config.retained_max;
        // The database may invalidate the log earlier than at `retained_max`.
        let adopts = retained.bytes > max || retained.safe.is_some_and(|safe| safe < retained.bytes / 4);
        let has_changed = {
            let mut status = lock(&self.shared.status);
            status.retained = Some(retained);
            std::mem::replace(&mut status.adopts, adopts) != adopts
        };
        if has_changed && adopts {
            tracing::warn!(
                bytes = retained.bytes,
                safe = retained.safe,
                "the log retains too much of the database's disk; the table adopts read messages to release the log"
            );
        } else if has_changed {
            tracing::info!("the log retains little disk again; messages are published from the log");
        }
        if !adopts {
            self.retained_at = Instant::now() + RETAINED_EVERY;
            return Ok(());
        }
        let shared = self.shared.clone();
        let _turn = shared.turn.lock().await;
        let ids = shared.window().ids();
        answered(shared.adopt(&*self.log, &ids)).await
    }
}

async fn answered<R>(call: impl Future<Output = Result<R, StoreError>>) -> Result<R, StoreError> {
    within(
        CALL_MAX,
        "the database did not answer the reading of the log",
        call,
    )
    .await
}
