//! Decides when a slot may run a suspect: a message that has failed before, or whose handler fails
//! for every message.
//!
//! While other messages wait, suspects get one slot in eight and an eighth of the time. While no
//! other message waits, suspects with long runs get half of the slots.

use std::time::Duration;

const SHARE: usize = 8;
const LONG: f64 = 0.25;
const OWED_MAX: f64 = 60.0;
pub(crate) const MEAN_WEIGHT: f64 = 0.1;

#[derive(Debug)]
pub(crate) struct Slots {
    concurrency: usize,
    suspects: usize,
    begun: u64,
    /// Seconds that suspects must leave to other messages. While other messages wait, no suspect
    /// starts before this is zero.
    owed: f64,
    suspect_mean: f64,
}

impl Slots {
    pub(crate) fn new(concurrency: usize) -> Self {
        Self {
            concurrency,
            suspects: 0,
            begun: 0,
            owed: 0.0,
            suspect_mean: 0.0,
        }
    }

    pub(crate) fn most_suspects(&self, others_wait: bool) -> usize {
        let part = match others_wait {
            true => SHARE,
            false if self.suspect_mean > LONG => 2,
            false => 1,
        };
        (self.concurrency / part).max(1)
    }

    pub(crate) fn may_begin_suspect(&self, others_wait: bool) -> bool {
        self.suspects < self.most_suspects(others_wait) && !(others_wait && self.owed > 0.0)
    }

    pub(crate) fn suspect_begins(&mut self) {
        self.suspects += 1;
        self.begun += 1;
    }

    pub(crate) fn suspect_ended(&mut self, took: Duration) {
        self.suspects -= 1;
        let took = took.as_secs_f64();
        self.suspect_mean += MEAN_WEIGHT * (took - self.suspect_mean);
        #[expect(clippy::cast_precision_loss, reason = "a small constant")]
        let others = (SHARE - 1) as f64;
        self.owed = (self.owed + took * others).min(OWED_MAX.max(took * others));
    }

    pub(crate) fn other_ended(&mut self, took: Duration) {
        self.owed = (self.owed - took.as_secs_f64()).max(0.0);
    }

    pub(crate) fn is_first_kind(&self) -> bool {
        self.begun.is_multiple_of(2)
    }

    pub(crate) fn suspect_mean(&self) -> f64 {
        self.suspect_mean
    }
}

pub(crate) fn to_f64(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn suspects_get_an_eighth_or_half_of_the_slots() {
        let mut slots = Slots::new(16);
        for _ in 0..2 {
            assert!(slots.may_begin_suspect(true));
            slots.suspect_begins();
        }
        assert!(!slots.may_begin_suspect(true));
        for _ in 0..14 {
            assert!(slots.may_begin_suspect(false));
            slots.suspect_begins();
        }
        assert!(!slots.may_begin_suspect(false));
        for _ in 0..8 {
            slots.suspect_ended(20 * SECOND);
        }
        assert!(!slots.may_begin_suspect(false));
    }

    #[test]
    fn suspect_time_is_repaid_sevenfold() {
        let mut slots = Slots::new(1);
        slots.suspect_begins();
        slots.suspect_ended(SECOND);
        for _ in 0..7 {
            assert!(!slots.may_begin_suspect(true));
            assert!(slots.may_begin_suspect(false));
            slots.other_ended(SECOND);
        }
        assert!(slots.may_begin_suspect(true));
    }

    #[test]
    fn time_used_without_competition_locks_no_suspect_out() {
        let mut slots = Slots::new(1);
        for _ in 0..1000 {
            slots.suspect_begins();
            slots.suspect_ended(SECOND);
        }
        for _ in 0..60 {
            slots.other_ended(SECOND);
        }
        assert!(slots.may_begin_suspect(true));
    }
}
