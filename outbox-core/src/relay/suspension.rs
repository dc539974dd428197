//! Notices that the machine was suspended.
//!
//! While a machine sleeps, or is frozen together with its monotonic clock, leases run out, and the clock by which a relay believes in them stands still. The wall
//! clock goes on meanwhile, or is set right afterwards. Invariant: the wall clock only ever ends a belief early, never prolongs it. Not here: what follows, see
//! [`ownership`](super::ownership). Nothing can be noticed while both clocks stand still, as in a virtual machine that was stopped and that nobody tells the time.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use time::Duration;

/// Tells how far the wall clock has run ahead of the monotonic one. Only differences between two answers mean something.
#[derive(Clone)]
pub(super) struct Clocks(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clocks {
    pub(super) fn new(lead: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(lead))
    }

    pub(super) fn lead(&self) -> Duration {
        (self.0)()
    }
}

impl Default for Clocks {
    /// The clocks of the machine. The monotonic one is not Tokio's, which tests pause.
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

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clocks").field(&self.lead()).finish()
    }
}
