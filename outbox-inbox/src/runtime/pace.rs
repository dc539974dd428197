//! How many deliveries can be handled in time.
//!
//! Invariant: what is taken is handled before half of `ack_wait` is over, as far as the mean of the handlers so far tells. Absent here: measuring.

use std::time::Duration;

/// Deliveries that `concurrency` jobs handle within half of `ack_wait`, at `mean` seconds each; without bound while nothing is known.
pub(super) fn timely(ack_wait: Duration, concurrency: usize, mean: f64) -> usize {
    if mean <= 0.0 {
        return usize::MAX;
    }
    let timely = ack_wait.as_secs_f64() / 2.0 * to_f64(concurrency) / mean;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let timely = timely.clamp(0.0, 1e9) as usize;
    timely
}

pub(super) fn to_f64(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_handlers_are_given_less() {
        let ack_wait = Duration::from_secs(30);
        assert_eq!(timely(ack_wait, 8, 0.0), usize::MAX);
        assert_eq!(timely(ack_wait, 8, 0.001), 120_000);
        assert_eq!(timely(ack_wait, 8, 10.0), 12);
        assert_eq!(timely(ack_wait, 1, 1e12), 0);
    }
}
