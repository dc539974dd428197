//! Looks for dead letters that an operator wants to be tried again.
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

/// How often a consumer looks for dead letters that are to be tried again.
const EVERY: Duration = Duration::from_secs(5);
/// Most of them at a time.
const MAX: u32 = 100;

/// When to look. The first time is at once, so that a process that starts takes up what was marked while none ran.
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
}

impl Default for Retries {
    fn default() -> Self {
        let (find, found) = mpsc::unbounded_channel();
        Self { find, found }
    }
}

impl Retries {
    /// What a look has found. Cancel-safe.
    pub(super) async fn found(&mut self) -> Option<Vec<StoredDeadLetter>> {
        self.found.recv().await
    }

    /// A look for dead letters that are not `known`, as far as there is `room` for them, in bytes. It is to run beside the loop, and ends in
    /// [`Self::found`] if there are any.
    pub(super) fn look(
        &self,
        consumer: Arc<Consumer>,
        known: HashSet<Uuid>,
        room: usize,
    ) -> impl Future<Output = ()> + Send + use<> {
        let find = self.find.clone();
        async move {
            let (pool, sql) = (consumer.shared.database.pool(), &consumer.shared.sql);
            match retry::due(pool, sql, consumer.name, MAX, room).await {
                Ok(letters) => {
                    let new = letters.into_iter().filter(|letter| !known.contains(&letter.id));
                    let new: Vec<_> = new.collect();
                    if !new.is_empty() {
                        // Nobody listens after the end of the loop.
                        let _ = find.send(new);
                    }
                }
                Err(error) => {
                    tracing::debug!(consumer = consumer.name, error = %describe(&error), "dead letters cannot be read")
                }
            }
        }
    }
}
