//! Delays between retries: exponential with jitter, so that relays do not return in one wave.

use std::time::Duration;

/// Exponential back-off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Minimum nominal delay.
    pub min: Duration,
    /// Maximum delay.
    pub max: Duration,
}

impl Backoff {
    /// Delay after `failures` failures: random, between half and all of `min * 2^(failures - 1)`,
    /// at most `max`.
    #[must_use]
    pub fn delay(&self, failures: u32, rng: &mut fastrand::Rng) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        let nominal = self.min.saturating_mul(1 << doublings).min(self.max);
        nominal.mul_f64(0.5 + rng.f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_within_their_bounds() {
        let backoff = Backoff {
            min: Duration::from_millis(100),
            max: Duration::from_secs(30),
        };
        let mut rng = fastrand::Rng::with_seed(7);
        for (failures, nominal_ms) in [
            (0, 100),
            (1, 100),
            (2, 200),
            (5, 1600),
            (20, 30_000),
            (u32::MAX, 30_000),
        ] {
            for _ in 0..100 {
                let delay = backoff.delay(failures, &mut rng).as_millis();
                assert!(
                    (nominal_ms / 2..=nominal_ms).contains(&delay),
                    "{failures}: {delay}"
                );
            }
        }
    }
}
