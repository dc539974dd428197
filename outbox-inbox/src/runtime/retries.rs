//! Finds the dead letters that an operator wants to be tried again.
//!
//! Not here: their place in the lanes ([`super::dispatch`]), how one is taken for this process, and what becomes of it ([`crate::dead_letter::retry`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};
use uuid::Uuid;

use super::consumer::Consumer;
use crate::dead_letter::{StoredDeadLetter, retry};
use crate::handler::describe;

/// How often a consumer reads the dead letters that are to be tried again.
const EVERY: Duration = Duration::from_secs(5);
/// Maximum number of dead letters per poll.
const MAX: u32 = 100;

/// When to poll. The first poll is at once, so that a process that starts takes up the dead letters that were marked while none ran.
pub(super) fn times() -> Interval {
    let mut times = interval(EVERY);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    times
}

/// The dead letters that were found.
#[derive(Debug)]
pub(super) struct Retries {
    find: mpsc::UnboundedSender<Vec<StoredDeadLetter>>,
    found: mpsc::UnboundedReceiver<Vec<StoredDeadLetter>>,
    /// Polls whose results have not arrived.
    polls: usize,
    /// A result has arrived.
    has_polled: bool,
}

impl Default for Retries {
    fn default() -> Self {
        let (find, found) = mpsc::unbounded_channel();
        Self {
            find,
            found,
            polls: 0,
            has_polled: false,
        }
    }
}

impl Retries {
    /// The dead letters that a poll has found. Cancel-safe.
    pub(super) async fn found(&mut self) -> Option<Vec<StoredDeadLetter>> {
        let letters = self.found.recv().await?;
        self.polls = self.polls.saturating_sub(1);
        self.has_polled = true;
        Some(letters)
    }

    /// Whether the dead letters that were due at the start have been found, and no poll is under way.
    pub(super) fn is_settled(&self) -> bool {
        self.has_polled && self.polls == 0
    }

    /// Reads the due dead letters that are not `known`, up to `room` bytes. The future is to run in a task of its own, and the result arrives in
    /// [`Self::found`]. If they cannot be read, the next poll may find them.
    pub(super) fn poll(
        &mut self,
        consumer: Arc<Consumer>,
        known: HashSet<Uuid>,
        room: usize,
    ) -> impl Future<Output = ()> + Send + use<> {
        self.polls += 1;
        let find = self.find.clone();
        async move {
            let (pool, sql) = (consumer.shared.database.pool(), &consumer.shared.sql);
            let letters = retry::due(pool, sql, consumer.name, MAX, room).await;
            let letters = letters.unwrap_or_else(|error| {
                tracing::debug!(consumer = consumer.name, error = %describe(&error), "dead letters cannot be read");
                Vec::new()
            });
            let new = letters.into_iter().filter(|letter| !known.contains(&letter.id));
            // Nobody listens after the end of the loop.
            let _ = find.send(new.collect());
        }
    }
}
