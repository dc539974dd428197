//! Which consumers of an inbox have nothing left to do; used by `drain` only.

use std::sync::atomic::{AtomicBool, Ordering};

/// One flag per consumer.
#[derive(Debug)]
pub(super) struct Idle {
    consumers: Vec<AtomicBool>,
}

impl Idle {
    pub(super) fn new(consumers: usize) -> Self {
        Self {
            consumers: (0..consumers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Notes whether a consumer is idle; returns whether all are.
    pub(super) fn set(&self, consumer: usize, idle: bool) -> bool {
        self.consumers[consumer].store(idle, Ordering::Relaxed);
        idle && self.consumers.iter().all(|idle| idle.load(Ordering::Relaxed))
    }
}
