//! Which consumers of an inbox have nothing left to do; used by `drain` only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether one consumer is idle, among all consumers of its inbox.
#[derive(Debug)]
pub(crate) struct Idleness {
    consumers: Arc<[AtomicBool]>,
    own: usize,
}

impl Idleness {
    /// One for each of so many consumers.
    pub(crate) fn of_all(consumers: usize) -> impl Iterator<Item = Self> {
        let all: Arc<[_]> = (0..consumers).map(|_| AtomicBool::new(false)).collect();
        (0..consumers).map(move |own| Self {
            consumers: all.clone(),
            own,
        })
    }

    /// Records whether the consumer is idle; returns whether all are.
    pub(crate) fn set(&self, is_idle: bool) -> bool {
        self.consumers[self.own].store(is_idle, Ordering::Relaxed);
        is_idle && self.consumers.iter().all(|idle| idle.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_idle_when_each_is() {
        let consumers: Vec<_> = Idleness::of_all(2).collect();
        assert!(!consumers[0].set(true));
        assert!(consumers[1].set(true));
        assert!(!consumers[0].set(false));
        assert!(!consumers[1].set(true));
    }
}
