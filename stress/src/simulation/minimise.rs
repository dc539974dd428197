//! Minimises a failing world.
//!
//! Leaves out one kind of fault, or half of a size, and keeps the change if the same
//! [`Invariant`](super::Invariant) breaks. Not always minimal, because each change gives a
//! different world.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::plan::Plan;
use super::{Outcome, simulate_without};

type Kind = (&'static str, fn(&mut Plan));

const KINDS: &[Kind] = &[
    ("crashes", |plan| plan.crashes.crash = 0.0),
    ("pauses", |plan| plan.crashes.pause = 0.0),
    ("stops", |plan| plan.crashes.stop = 0.0),
    ("outages", |plan| plan.faults_every = None),
    ("cut-off", |plan| plan.cut_off = None),
    ("clocks", |plan| plan.clocks_every = None),
    ("operators", |plan| plan.operator_every = None),
    ("reconciling", |plan| plan.reconcile_every = None),
    ("publishing-pauses", |plan| plan.pauses = None),
    ("drains", |plan| plan.drains = 0.0),
    ("forgotten-ids", |plan| plan.forgets = false),
    ("lost-messages", |plan| plan.loses = false),
    ("failed-calls", |plan| plan.store.fails = 0.0),
    ("lost-answers", |plan| plan.store.loses_answer = 0.0),
    ("slow-calls", |plan| plan.store.is_slow = 0.0),
    ("silent-calls", |plan| plan.store.never_answers = 0.0),
    ("lost-acks", |plan| plan.broker.loses_ack = 0.0),
    ("late-acks", |plan| plan.broker.is_late = 0.0),
    ("ghosts", |plan| plan.broker.ghosts = 0.0),
    ("vanishing", |plan| plan.broker.vanishes = 0.0),
    ("refusals", |plan| plan.broker.refuses = 0.0),
    ("rollbacks", |plan| plan.writer.rolls_back = 0.0),
    ("unknown-commits", |plan| plan.writer.unknown = 0.0),
    ("delays", |plan| plan.writer.delayed = 0.0),
    ("unsequenced", |plan| plan.writer.unsequenced = 0.0),
    ("poison", |plan| plan.writer.poison = 0.0),
    ("refused-verdicts", |plan| plan.writer.unrecordable = 0.0),
    ("writers-clocks", |plan| plan.writer.skew_max = Duration::ZERO),
    ("row-ids", |plan| plan.row_ids_set_back = None),
    ("log", |plan| plan.log = None),
    ("log-faults", |plan| {
        if let Some(log) = &mut plan.log {
            log.faults_every = None;
        }
    }),
    ("latency", |plan| {
        plan.store.latency_max = Duration::ZERO;
        plan.broker.latency_max = Duration::ZERO;
    }),
    ("relays/2", |plan| {
        // Another relay must do the work.
        let min = 1 + u32::from(plan.cut_off.is_some());
        plan.relays = plan.relays.div_ceil(2).max(min);
    }),
    ("writers/2", |plan| plan.writers = plan.writers.div_ceil(2)),
    ("transactions/2", |plan| {
        plan.transactions = plan.transactions.div_ceil(2)
    }),
    ("transactions/4", |plan| {
        plan.transactions = plan.transactions.div_ceil(4)
    }),
    ("events/2", |plan| plan.events_max = plan.events_max.div_ceil(2)),
    ("aggregates/2", |plan| {
        plan.aggregates = plan.aggregates.div_ceil(2)
    }),
];

/// Faults or halves of sizes to leave out of a world. Displayed as a list of names, as on the
/// command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Without(u64);

impl Without {
    /// The whole world.
    pub const NOTHING: Self = Self(0);

    fn and(self, kind: usize) -> Self {
        Self(self.0 | 1 << kind)
    }

    fn has(self, kind: usize) -> bool {
        self.0 & 1 << kind != 0
    }

    pub(super) fn apply(self, plan: &mut Plan) {
        for (kind, (_, leave_out)) in KINDS.iter().enumerate() {
            if self.has(kind) {
                leave_out(plan);
            }
        }
    }
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = KINDS.iter().enumerate();
        let names: Vec<&str> = all
            .filter(|(kind, _)| self.has(*kind))
            .map(|(_, (name, _))| *name)
            .collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Without {
    type Err = String;

    fn from_str(names: &str) -> Result<Self, Self::Err> {
        let mut names = names.split(',').filter(|name| !name.is_empty());
        names.try_fold(Self::NOTHING, |without, name| {
            let kind = KINDS.iter().position(|(known, _)| *known == name);
            kind.map(|kind| without.and(kind)).ok_or_else(|| {
                let known: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
                format!(
                    "nothing is called `{name}`; leave out some of {}",
                    known.join(",")
                )
            })
        })
    }
}

/// The smallest world found that breaks the same invariant, with the last `lines` lines of its
/// history. Blocks, as [`simulate`](super::simulate).
#[must_use]
pub fn minimise(outcome: &Outcome, lines: usize) -> Outcome {
    let Some((broken, _)) = outcome.violation else {
        return outcome.clone();
    };
    let mut without = outcome.without;
    let fails = |without| {
        let violation = simulate_without(outcome.seed, outcome.wrong, without, 0).violation;
        violation.is_some_and(|(invariant, _)| invariant == broken)
    };
    // Twice, because a fault may matter only in combination.
    for kind in (0..KINDS.len()).chain(0..KINDS.len()) {
        let less = without.and(kind);
        if less != without && fails(less) {
            without = less;
        }
    }
    simulate_without(outcome.seed, outcome.wrong, without, lines)
}

const _: () = assert!(KINDS.len() <= u64::BITS as usize);

#[cfg(test)]
mod tests {
    use super::super::Wrong;
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let without = (0..KINDS.len()).step_by(3).fold(Without::NOTHING, Without::and);
        assert_eq!(without.to_string().parse(), Ok(without));
        assert!("crashes,typo".parse::<Without>().is_err());
    }

    #[test]
    fn a_planted_mistake_is_found_again_in_a_smaller_world() {
        let mut worlds =
            (0..200).map(|seed| simulate_without(seed, Wrong::NoEpochCheck, Without::NOTHING, 0));
        let failing = worlds.find(|outcome| outcome.violation.is_some());
        let failing = failing.expect("one of these worlds fails");
        let small = minimise(&failing, 10);
        let broken = |outcome: &Outcome| outcome.violation.as_ref().map(|(invariant, _)| *invariant);
        assert_eq!(broken(&small), broken(&failing));
        assert!(small.without.0.count_ones() > 10, "{small}");
        assert!(small.replay().contains("--without"), "{small}");
    }
}
