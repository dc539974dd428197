//! The share of the partitions that a relay acquires and keeps.
//!
//! Invariants: the shares of all live relays cover all partitions. A relay does not acquire
//! partitions above its share, and hands over only to relays with a recent success.

use crate::message::PARTITIONS;
use crate::store::{RelayHealth, Relays};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) takes: usize,
    pub(super) keeps: usize,
}

/// An unhealthy relay hands over only to healthy relays: any other may be waiting for the same
/// broker. A relay in a trial gets its share.
pub(super) fn share(shares: bool, own: RelayHealth, relays: Relays) -> Share {
    let all = usize::from(PARTITIONS);
    let among = |relays: u32| all.div_ceil(relays.max(1) as usize);
    let able = relays.alive() - relays.unhealthy;
    // While no relay is healthy, relays hand over only to a relay in a trial.
    let staying = if relays.unhealthy > 0 && relays.recovering == 0 {
        all
    } else {
        among(relays.alive())
    };
    let (takes, keeps) = match own {
        _ if !shares => (all, all),
        RelayHealth::Unhealthy if relays.healthy > 0 => (0, 0),
        // Free partitions go to relays that are not unhealthy, if any.
        RelayHealth::Unhealthy if able > 0 => (0, staying),
        RelayHealth::Unhealthy => (among(relays.alive()), staying),
        _ if relays.healthy > 0 => (among(able), among(able)),
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
            let [healthy, unknown, recovering, unhealthy] =
                [code % 4, code / 4 % 4, code / 16 % 4, code / 64];
            let relays = Relays {
                healthy,
                unknown,
                recovering,
                unhealthy,
                disagreeing: 0,
            };
            let counts = [healthy, unknown, recovering, unhealthy];
            let shares = RelayHealth::ALL.map(|own| share(true, own, relays));
            let takes = (0..4).map(|own| shares[own].takes * counts[own] as usize);
            assert!(takes.sum::<usize>() >= all, "{relays:?}");
            for Share { takes, keeps } in shares {
                assert!(takes <= keeps, "it would release what it acquires: {relays:?}");
            }
            let hands_over = shares[RelayHealth::Unhealthy as usize].keeps == 0;
            assert_eq!(hands_over, healthy > 0, "{relays:?}");
            if healthy == 0 && recovering == 0 && unhealthy > 0 {
                assert!(shares.iter().all(|share| share.keeps == all), "{relays:?}");
            }
        }
    }
}
