//! Detects that the machine was suspended: leases expire, but the monotonic clock may stop.
//!
//! Invariant: the wall clock only shortens the time for which a lease is trusted. If monotonic
//! clock and wall clock both stop, as in a paused virtual machine, the suspension is not detected.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use time::Duration;

/// Lead of the wall clock over the monotonic clock; only differences are meaningful.
#[derive(derive_more::Debug, Clone)]
pub(super) struct Clocks(#[debug(skip)] Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clocks {
    pub(super) fn new(lead: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(lead))
    }

    pub(super) fn lead(&self) -> Duration {
        (self.0)()
    }
}

impl Default for Clocks {
    fn default() -> Self {
        let (wall, monotonic) = (SystemTime::now(), Instant::now());
        Self::new(move || {
            let signed = |elapsed| Duration::try_from(elapsed).unwrap_or(Duration::MAX);
            let gone = match SystemTime::now().duration_since(wall) {
                Ok(elapsed) => signed(elapsed),
                Err(set_back) => -signed(set_back.duration()),
            };
            gone.saturating_sub(signed(monotonic.elapsed()))
        })
    }
}
