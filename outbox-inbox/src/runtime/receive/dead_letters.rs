//! Polls for dead letters marked for retry.

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

const EVERY: Duration = Duration::from_secs(5);
const MAX: u32 = 100;
/// Maximum number of dead letters in memory that a poll's query excludes, because MySQL accepts
/// 65,535 values per statement. The poll removes further ones from the result.
const HELD_MAX: usize = 16_384;

/// The first poll comes at once, because letters may have been marked while no process ran.
pub(crate) fn times() -> Interval {
    let mut times = interval(EVERY);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    times
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) known: HashSet<Uuid>,
    /// Aggregates that a poll excludes, because their first dead letter cannot run yet. Otherwise
    /// they could fill the poll's result.
    pub(crate) aggregates: HashSet<Aggregate>,
    pub(crate) ready: usize,
    pub(crate) room: usize,
}

pub(crate) struct DeadLetterPolls {
    consumer: Arc<Consumer>,

    find: mpsc::UnboundedSender<Vec<StoredDeadLetter>>,
    found: mpsc::UnboundedReceiver<Vec<StoredDeadLetter>>,
    polls: usize,
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

    /// Cancel-safe.
    pub(crate) async fn found(&mut self) -> Option<Vec<StoredDeadLetter>> {
        let letters = self.found.recv().await?;
        self.polls = self.polls.saturating_sub(1);
        self.has_polled = true;
        Some(letters)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.has_polled && self.polls == 0
    }

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
            let _ = find.send(new.collect());
        }
    }
}
