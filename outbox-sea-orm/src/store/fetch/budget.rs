//! Limits the rows of a fetch by the size of earlier payloads.
//!
//! sqlx reads the whole result before it reuses the connection. If payloads suddenly grow, the
//! fetch stops at its byte limit and closes the connection ([`Session::close`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::session::Session;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
}

impl Bounds {
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        self.rows = self.rows.saturating_sub(1);
        let fits = bytes <= self.bytes;
        self.bytes = self.bytes.saturating_sub(bytes);
        fits && self.rows > 0
    }
}

/// Expected payload bytes, 0 if unknown. Shared by clones of a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fitting(Arc<AtomicUsize>);

impl Fitting {
    pub(super) fn rows(&self, bounds: Bounds, unknown: usize) -> usize {
        let fitting = match self.0.load(Ordering::Relaxed) {
            0 => unknown,
            size => (bounds.bytes / size).saturating_add(1),
        };
        fitting.clamp(1, bounds.rows.max(1))
    }

    /// A larger payload size counts at once. A smaller size counts only after a full batch, and at
    /// most halves the estimate.
    pub(super) fn learn(&self, asked: usize, read: usize, bytes: usize) {
        if read == 0 {
            return;
        }
        let (size, known) = ((bytes / read).max(1), self.0.load(Ordering::Relaxed));
        if size > known || known == 0 {
            self.0.store(size, Ordering::Relaxed);
        } else if read >= asked {
            self.0.store(size.max(known / 2), Ordering::Relaxed);
        }
    }
}

/// Reading a few rows is cheaper than a new connection.
pub(super) fn leave(db: &Session, asked: usize, read: usize) {
    if read < asked / 2 {
        db.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;
    const BOUNDS: Bounds = Bounds {
        rows: 4_000,
        bytes: 32 * MIB,
    };

    #[test]
    fn large_payloads_count_at_once_and_small_ones_by_and_by() {
        let fitting = Fitting::default();
        assert_eq!(fitting.rows(BOUNDS, usize::MAX), 4_000);
        fitting.learn(4_000, 129, 129 * MIB / 4);
        assert_eq!(fitting.rows(BOUNDS, usize::MAX), 129);
        fitting.learn(129, 3, 3);
        assert_eq!(fitting.rows(BOUNDS, usize::MAX), 129, "a few small payloads");
        let mut asked = vec![129];
        while asked.last() != Some(&4_000) {
            fitting.learn(asked[asked.len() - 1], asked[asked.len() - 1], 100);
            asked.push(fitting.rows(BOUNDS, usize::MAX));
        }
        assert_eq!(asked, [129, 257, 513, 1_025, 2_049, 4_000]);
    }

    #[test]
    fn a_payload_larger_than_the_bound_is_asked_for_alone() {
        let fitting = Fitting::default();
        fitting.learn(10, 1, 64 * MIB);
        assert_eq!(fitting.rows(BOUNDS, 64), 1);
    }
}
