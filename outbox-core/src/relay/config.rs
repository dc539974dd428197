//! Settings of a relay, each with its bound, default and trade-off.

use std::num::NonZeroU32;
use std::time::Duration;

use super::RelayError;
use crate::retry::Backoff;

/// What happens to the aggregate of a message that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoisonPolicy {
    /// Later messages of the aggregate wait until the parked one is retried or skipped: order is kept.
    #[default]
    HaltAggregate,
    /// Later messages go on: consumers see a hole in the sequence.
    ParkAndContinue,
}

/// Settings of a relay. `RelayConfig::default()` is right for most services.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayConfig {
    /// How long a partition is owned without renewal. A crashed relay's messages wait this long for another relay; a database
    /// hiccup of more than a sixth of it interrupts publishing. 300 ms to 10 min, default 15 s.
    pub lease_ttl: Duration,
    /// Messages per fetch, and so the bound on memory: this many payloads. Choose less for payloads of hundreds of kilobytes.
    /// Default 1,000.
    pub batch: NonZeroU32,
    /// Unconfirmed messages at a time. 1 to 1,024, default 256.
    pub window: usize,
    /// Shortest wait between polls while idle. Default 50 ms.
    pub poll_min: Duration,
    /// Longest wait between polls while idle, and so the latency of commits in other processes. Default 1 s.
    pub poll_max: Duration,
    /// Waits after failures, for the relay as a whole and for a single aggregate. Default 100 ms to 30 s.
    pub backoff: Backoff,
    /// Refusals of unknown kind after which a message is parked. Outages never count. Default 20.
    pub attempts_max: u32,
    /// What becomes of the aggregate then. Default: halt.
    pub on_poison: PoisonPolicy,
    /// How long a shutdown waits for confirmations. Default 10 s, never longer than the leases last.
    pub shutdown_timeout: Duration,
    /// Seed of the jitter; tests set it to repeat a run. Default: random.
    pub seed: Option<u64>,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            lease_ttl: Duration::from_secs(15),
            batch: const { NonZeroU32::new(1000).unwrap() },
            window: 256,
            poll_min: Duration::from_millis(50),
            poll_max: Duration::from_secs(1),
            backoff: Backoff {
                min: Duration::from_millis(100),
                max: Duration::from_secs(30),
            },
            attempts_max: 20,
            on_poison: PoisonPolicy::HaltAggregate,
            shutdown_timeout: Duration::from_secs(10),
            seed: None,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $ty:ty,)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $ty) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

impl RelayConfig {
    setters! {
        /// Sets [`Self::lease_ttl`](#structfield.lease_ttl).
        lease_ttl: Duration,
        /// Sets [`Self::batch`](#structfield.batch).
        batch: NonZeroU32,
        /// Sets [`Self::window`](#structfield.window).
        window: usize,
        /// Sets [`Self::poll_min`](#structfield.poll_min).
        poll_min: Duration,
        /// Sets [`Self::poll_max`](#structfield.poll_max).
        poll_max: Duration,
        /// Sets [`Self::backoff`](#structfield.backoff).
        backoff: Backoff,
        /// Sets [`Self::attempts_max`](#structfield.attempts_max).
        attempts_max: u32,
        /// Sets [`Self::on_poison`](#structfield.on_poison).
        on_poison: PoisonPolicy,
        /// Sets [`Self::shutdown_timeout`](#structfield.shutdown_timeout).
        shutdown_timeout: Duration,
        /// Sets [`Self::seed`](#structfield.seed).
        seed: Option<u64>,
    }

    pub(super) fn check(&self) -> Result<(), RelayError> {
        let fail = |text: String| Err(RelayError::Config(text));
        let ttl = Duration::from_millis(300)..=Duration::from_secs(600);
        if !ttl.contains(&self.lease_ttl) {
            return fail(format!(
                "lease_ttl is {:?}; use {:?} to {:?}",
                self.lease_ttl,
                ttl.start(),
                ttl.end()
            ));
        }
        if !(1..=1024).contains(&self.window) {
            return fail(format!("window is {}; use 1 to 1024", self.window));
        }
        if self.poll_min.is_zero() || self.poll_min > self.poll_max {
            return fail(format!(
                "poll_min is {:?} and poll_max {:?}; use 0 < poll_min <= poll_max",
                self.poll_min, self.poll_max
            ));
        }
        if self.backoff.min.is_zero() || self.backoff.min > self.backoff.max {
            return fail(format!("backoff is {:?}; use 0 < min <= max", self.backoff));
        }
        if self.attempts_max == 0 {
            return fail("attempts_max is 0; use at least 1".to_owned());
        }
        Ok(())
    }
}
