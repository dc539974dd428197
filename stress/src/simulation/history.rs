//! The events of a simulated world, in order.
//!
//! Invariant: an event names messages, runs of relays and aggregates by small numbers, never by their random ids. So
//! the same seed gives the same history and the same digest. [`checker`](super::checker) judges the world.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

/// The number of a message in the order of commits. Replayed copies have numbers of their own.
pub(super) type MessageNo = u32;
/// The number of a run of a relay, in the order of starts.
pub(super) type Life = u32;

#[derive(Debug)]
pub(super) struct History {
    started: Instant,
    events: Vec<(Duration, Cow<'static, str>)>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            events: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, event: impl Into<Cow<'static, str>>) {
        self.events.push((self.started.elapsed(), event.into()));
    }

    /// A digest that is equal for equal histories.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.events.hash(&mut hasher);
        hasher.finish()
    }

    /// The last lines, as text.
    pub(super) fn tail(&self, lines: usize) -> Vec<String> {
        let from = self.events.len().saturating_sub(lines);
        let line = |(at, event): &(Duration, Cow<'_, str>)| format!("{:>9.3} {event}", at.as_secs_f64());
        self.events[from..].iter().map(line).collect()
    }
}
