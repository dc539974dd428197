//! Which event types and versions without a handler were logged, so that each is logged once.

use std::collections::HashSet;

/// Most event types and versions that are logged. A foreign sender may make up any number of versions.
pub(super) const MET_MAX: usize = 1_000;

/// Event types and versions without a handler that others are to handle, as far as they came.
#[derive(Debug, Default)]
pub(super) struct Met(HashSet<String>);

/// Whether to log what was met.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Yes,
    /// And say that nothing more is logged.
    Last,
    No,
}

impl Met {
    pub(super) fn meet(&mut self, what: &str) -> News {
        if self.0.len() >= MET_MAX || !self.0.insert(what.to_owned()) {
            return News::No;
        }
        if self.0.len() < MET_MAX {
            News::Yes
        } else {
            News::Last
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silence_after_many_unknown_types_is_announced_once() {
        let mut met = Met::default();
        for number in 1..MET_MAX {
            assert_eq!(met.meet(&number.to_string()), News::Yes);
        }
        assert_eq!(met.meet("1"), News::No);
        assert_eq!(met.meet("the last"), News::Last);
        assert_eq!(met.meet("another"), News::No);
        assert_eq!(met.meet("the last"), News::No);
    }
}
