//! Dead letters that an operator wants to be tried again enter the lanes of their consumer.
//!
//! Invariant: they wait in the lane of their aggregate like any other message. Absent here: taking one for this process, and what becomes of it
//! ([`crate::dead_letter::retry`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::Subscriber;
use tokio::time::Instant;

use super::dispatch::Dispatcher;
use super::job::{InFlight, Origin};
use super::lanes::LaneKey;
use crate::dead_letter::{StoredDeadLetter, retry};
use crate::handler::describe;

/// How often a consumer looks for dead letters that are to be tried again.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Most of them at a time.
const MAX: u32 = 100;

impl<S: Subscriber> Dispatcher<S> {
    /// Looks for dead letters that are to be tried again, beside the loop.
    pub(super) fn poll_retries(&mut self) {
        let known = |origin: &Origin<_>| match origin {
            Origin::DeadLetter(letter) => Some(letter.id),
            Origin::Broker(_) => None,
        };
        let known: HashSet<_> = self.unanswered.values().filter_map(known).collect();
        let room = self
            .consumer
            .shared
            .config
            .buffer_bytes
            .saturating_sub(self.bytes);
        let (consumer, found) = (self.consumer.clone(), self.retries.0.clone());
        self.tasks.spawn(async move {
            let (pool, sql) = (consumer.shared.database.pool(), &consumer.shared.sql);
            match retry::due(pool, sql, consumer.name, MAX, room).await {
                Ok(letters) => {
                    let new = letters.into_iter().filter(|letter| !known.contains(&letter.id));
                    let new: Vec<_> = new.collect();
                    if !new.is_empty() {
                        // Nobody listens after the end of the loop.
                        let _ = found.send(new);
                    }
                }
                Err(error) => tracing::debug!(consumer = consumer.name, error = %describe(&error), "dead letters cannot be read"),
            }
        });
    }

    /// A letter failed again, and with it those behind it in its aggregate have been taken off the list. They must not run if an operator marks all of
    /// them again meanwhile: the one that failed comes first, in the next look.
    pub(super) fn forget_retries(&mut self, lane: &Arc<LaneKey>, now: Instant) {
        let is_letter = |in_flight: &InFlight<_>| matches!(in_flight.origin, Origin::DeadLetter(_));
        for letter in self.lanes.withdraw(lane, is_letter, now) {
            self.answered(letter.local_id);
        }
    }

    pub(super) fn accept_retries(&mut self, letters: Vec<StoredDeadLetter>) {
        for letter in letters {
            let letter = Arc::new(letter);
            let routed = self.consumer.routed_letter(letter.clone());
            let (key, in_flight) = self.enter(Origin::DeadLetter(letter), routed);
            self.lanes.push(key, in_flight, Instant::now());
        }
    }
}
