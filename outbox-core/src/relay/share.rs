//! The share of the partitions that a relay takes over and keeps.
//!
//! Invariants: whatever relays there are, their shares cover all partitions, and a relay takes no more than it keeps. Nobody hands over to a relay that has not
//! succeeded lately. Not here: which partitions these are, see [`ownership`](super::ownership).

use crate::message::PARTITIONS;
use crate::store::{Fitness, Relays};

/// How many partitions a relay may own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// It takes over free partitions until it has this many.
    pub(super) takes: usize,
    /// It gives back the partitions that it has beyond this many.
    pub(super) keeps: usize,
}

/// The share of one relay among those that are alive, rounded up.
///
/// An ailing relay hands over to relays that are fit, and to no others: a relay that has not succeeded lately might only be waiting for the same broker. If none
/// is fit, all partitions stay where they are, however long the broker is away and whatever relays come and go. A relay that tries again gets its share for that.
pub(super) fn share(shares: bool, own: Fitness, relays: Relays) -> Share {
    let all = usize::from(PARTITIONS);
    let among = |relays: u32| all.div_ceil(relays.max(1) as usize);
    let able = relays.alive() - relays.ailing;
    // While nobody is fit, nobody hands over; a relay that tries again gets its share all the same.
    let staying = if relays.ailing > 0 && relays.trying == 0 {
        all
    } else {
        among(relays.alive())
    };
    let (takes, keeps) = match own {
        _ if !shares => (all, all),
        Fitness::Ailing if relays.fit > 0 => (0, 0),
        // Free partitions are for the relays that are not ailing, if there are any.
        Fitness::Ailing if able > 0 => (0, staying),
        Fitness::Ailing => (among(relays.alive()), staying),
        _ if relays.fit > 0 => (among(able), among(able)),
        _ => (among(able), staying.max(among(able))),
    };
    Share { takes, keeps }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever relays there are, the partitions are covered; and nobody hands over to one that has not succeeded.
    #[test]
    fn shares_cover_all_partitions_and_go_to_those_that_are_fit() {
        let all = usize::from(PARTITIONS);
        for code in 1..4_u32.pow(4) {
            let [fit, unproven, trying, ailing] = [code % 4, code / 4 % 4, code / 16 % 4, code / 64];
            let relays = Relays {
                fit,
                unproven,
                trying,
                ailing,
                disagreeing: 0,
            };
            let counts = [fit, unproven, trying, ailing];
            let shares = Fitness::ALL.map(|own| share(true, own, relays));
            let takes = (0..4).map(|own| shares[own].takes * counts[own] as usize);
            assert!(takes.sum::<usize>() >= all, "{relays:?}");
            for Share { takes, keeps } in shares {
                assert!(takes <= keeps, "what it takes it would give back: {relays:?}");
            }
            let hands_over = shares[Fitness::Ailing as usize].keeps == 0;
            assert_eq!(hands_over, fit > 0, "{relays:?}");
            if fit == 0 && trying == 0 && ailing > 0 {
                assert!(shares.iter().all(|share| share.keeps == all), "{relays:?}");
            }
        }
    }
}
