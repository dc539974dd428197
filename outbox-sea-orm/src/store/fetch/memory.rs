//! What fetches of one store learn from earlier ones.
//!
//! Invariant: all of it may be lost at any time, which costs time and nothing else.

use outbox_core::{FetchedRow, Lease, Settlement};

use super::budget::Fitting;
#[cfg(feature = "postgres")]
use super::returned::Returned;

/// What fetches of one store learn from earlier ones.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct Memory {
    pub(in crate::store) fitting: Fitting,
    #[cfg(feature = "postgres")]
    pub(super) returned: Returned,
}

#[cfg_attr(
    not(feature = "postgres"),
    expect(clippy::unused_self, reason = "only PostgreSQL needs it")
)]
impl Memory {
    /// Before a fetch under these leases.
    pub(in crate::store) fn begin(&self, leases: &[Lease]) {
        #[cfg(feature = "postgres")]
        self.returned.begin(leases);
        #[cfg(not(feature = "postgres"))]
        let _ = leases;
    }

    /// After a fetch that returns these messages.
    pub(in crate::store) fn end(&self, due: &[FetchedRow]) {
        #[cfg(feature = "postgres")]
        self.returned.add(due);
        #[cfg(not(feature = "postgres"))]
        let _ = due;
    }

    /// Before verdicts are stored.
    pub(in crate::store) fn settle(&self, settlements: &[Settlement]) {
        #[cfg(feature = "postgres")]
        self.returned.settle(settlements);
        #[cfg(not(feature = "postgres"))]
        let _ = settlements;
    }
}
