//! The events of a simulated world, in order. Events use numbers, never random ids, so that a seed
//! always gives the same digest.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

pub(super) type MessageNo = u32;
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

    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.events.hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn tail(&self, lines: usize) -> Vec<String> {
        let from = self.events.len().saturating_sub(lines);
        let line = |(at, event): &(Duration, Cow<'_, str>)| format!("{:>9.3} {event}", at.as_secs_f64());
        self.events[from..].iter().map(line).collect()
    }
}
