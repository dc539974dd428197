//! The share of the partitions that a relay acquires and keeps.
//!
//! Invariants: the shares of all live relays cover all partitions. A relay acquires no more than it
//! keeps, and hands over only to relays with a recent success.

use crate::message::PARTITIONS;
use crate::store::{Fitness, Relays};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) takes: usize,
    pub(super) keeps: usize,
}

/// An ailing relay hands over only to fit relays: any other may be waiting for the same broker. A
/// relay in a trial gets its share.
pub(super) fn share(shares: bool, own: Fitness, relays: Relays) -> Share {
    let all = usize::from(PARTITIONS);
    let among = |relays: u32| all.div_ceil(relays.max(1) as usize);
    let able = relays.alive() - relays.ailing;
    // While no relay is fit, relays hand over only to a relay in a trial.
    let staying = if relays.ailing > 0 && relays.trying == 0 {
        all
    } else {
        among(relays.alive())
    };
    let (takes, keeps) = match own {
        _ if !shares => (all, all),
        Fitness::Ailing if relays.fit > 0 => (0, 0),
        // Free partitions go to relays that are not ailing, if any.
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

    #[test]
    fn shares_cover_all_partitions_and_prefer_fit_relays() {
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
                assert!(takes <= keeps, "it would release what it acquires: {relays:?}");
            }
            let hands_over = shares[Fitness::Ailing as usize].keeps == 0;
            assert_eq!(hands_over, fit > 0, "{relays:?}");
            if fit == 0 && trying == 0 && ailing > 0 {
                assert!(shares.iter().all(|share| share.keeps == all), "{relays:?}");
            }
        }
    }
}
