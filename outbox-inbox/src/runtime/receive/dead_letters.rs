//! Finds the dead letters that an operator wants to be tried again.
//!
//! Not here: their place in the lanes ([`crate::runtime::dispatcher`]), how one is taken for this
//! process, and what becomes of it ([`crate::dead_letter::retry`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::Aggregate;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};
use uuid::Uuid;

use crate::dead_letter::{StoredDeadLetter, retry};
use crate::handler::describe;
use crate::runtime::consumer::Consumer;

/// How often a consumer reads the dead letters that are to be tried again.
const EVERY: Duration = Duration::from_secs(5);
/// Maximum number of dead letters per poll.
const MAX: u32 = 100;
/// Aggregates of a poll that are left out. MySQL takes 65,535 values in a statement. Letters of
/// others are dropped when they are found in memory.
const HELD_MAX: usize = 16_384;

/// When to poll. The first poll is at once, so that a process that starts takes up the dead letters
/// that were marked while none ran.
pub(crate) fn times() -> Interval {
    let mut times = interval(EVERY);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    times
}

/// The dead letters in memory when a poll begins.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The letters.
    pub(crate) known: HashSet<Uuid>,
    /// Their aggregates, where these are the order. The poll leaves out all letters of these
    /// aggregates, because letters behind one that cannot run yet must not hide the letters of
    /// other aggregates.
    pub(crate) aggregates: HashSet<Aggregate>,
    /// How many of these may still run at once. A poll takes so many fewer, so that letters do not
    /// fill the memory.
    pub(crate) ready: usize,
    /// Free bytes.
    pub(crate) room: usize,
}

/// Polls for dead letters that are to be retried.
pub(crate) struct DeadLetterPolls {
    consumer: Arc<Consumer>,

    find: mpsc::UnboundedSender<Vec<StoredDeadLetter>>,
    found: mpsc::UnboundedReceiver<Vec<StoredDeadLetter>>,
    /// Polls whose results have not arrived.
    polls: usize,
    /// A result has arrived.
    has_polled: bool,
}

impl DeadLetterPolls {
    pub(crate) fn new(consumer: Arc<Consumer>) -> Self {
        let (find, found) = mpsc::unbounded_channel();
        Self {
            consumer,
            find,
            found,
            polls: 0,
            has_polled: false,
        }
    }

    /// The dead letters that a poll has found. Cancel-safe.
    pub(crate) async fn found(&mut self) -> Option<Vec<StoredDeadLetter>> {
        let letters = self.found.recv().await?;
        self.polls = self.polls.saturating_sub(1);
        self.has_polled = true;
        Some(letters)
    }

    /// Whether the dead letters that were due at the start have been found, and no poll is under
    /// way.
    pub(crate) fn is_settled(&self) -> bool {
        self.has_polled && self.polls == 0
    }

    /// Reads the due dead letters that are not in memory. The future is to run in a task of its
    /// own, and the result arrives in [`Self::found`]. If they cannot be read, the next poll may
    /// find them.
    pub(crate) fn poll(&mut self, held: Held) -> impl Future<Output = ()> + Send + use<> {
        self.polls += 1;
        let (find, consumer) = (self.find.clone(), self.consumer.clone());
        async move {
            let (pool, sql) = (consumer.shared.database.pool(), &consumer.shared.sql);
            let aggregates: Vec<_> = held.aggregates.into_iter().take(HELD_MAX).collect();
            let max = MAX.saturating_sub(u32::try_from(held.ready).unwrap_or(u32::MAX));
            let letters = retry::due(pool, sql, consumer.name, &aggregates, max, held.room).await;
            let letters = letters.unwrap_or_else(|error| {
                tracing::debug!(consumer = consumer.name, error = %describe(&error), "dead letters cannot be read");
                Vec::new()
            });
            let new = letters
                .into_iter()
                .filter(|letter| !held.known.contains(&letter.id));
            // The receiver is gone after the end of the loop.
            let _ = find.send(new.collect());
        }
    }
}
