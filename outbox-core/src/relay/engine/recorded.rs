//! Tells what the store has recorded: in the report, by metrics, and through the hook for dead letters.
//!
//! Invariant: nothing is told that the store may have refused. The store accepts the verdicts of a partition together or not at all, and says only how many it
//! accepted. If it refused some, the others are told once a renewal shows which leases have lasted, because a lease that lasts was good at the settlement. A crash
//! or a shutdown before that leaves them untold.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Engine;
use crate::publisher::Publisher;
use crate::relay::in_flight::Settling;
use crate::relay::retention;
use crate::relay::{DeadMessage, RelayReport};
use crate::store::{Lease, OutboxStore};
use crate::telemetry;

/// What is to be told of the verdicts under one lease.
#[derive(Debug, Default)]
struct Recorded {
    published: u64,
    /// Of those, messages that the broker had from an earlier attempt.
    duplicates: u64,
    dead: Vec<DeadMessage>,
}

/// What is told once its leases have proved to last.
#[derive(Debug, Default)]
pub(super) struct Untold {
    of: Vec<(Lease, Recorded)>,
    /// How many upkeeps have begun, in all and before the last refusal.
    upkeeps: (u64, u64),
}

impl Untold {
    /// An upkeep begins.
    pub(super) fn begin_upkeep(&mut self) {
        self.upkeeps.0 += 1;
    }

    fn hold(&mut self, recorded: Vec<(Lease, Recorded)>) {
        self.upkeeps.1 = self.upkeeps.0;
        for (lease, more) in recorded {
            let held = of_lease(&mut self.of, lease);
            held.published += more.published;
            held.duplicates += more.duplicates;
            held.dead.extend(more.dead);
        }
    }

    /// The last upkeep has renewed these leases and no others. If it began before the refusal, it proves nothing.
    fn proved(&mut self, owned: &[Lease]) -> Vec<Recorded> {
        if self.upkeeps.0 == self.upkeeps.1 {
            return Vec::new();
        }
        let proved = self.of.drain(..).filter(|(lease, _)| owned.contains(lease));
        proved.map(|(_, recorded)| recorded).collect()
    }
}

fn of_lease(all: &mut Vec<(Lease, Recorded)>, lease: Lease) -> &mut Recorded {
    let found = all.iter().position(|(of, _)| *of == lease);
    let at = found.unwrap_or_else(|| {
        all.push((lease, Recorded::default()));
        all.len() - 1
    });
    &mut all[at].1
}

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    /// The store accepted this many of these verdicts.
    pub(super) fn recorded(&mut self, mut settled: Settling, accepted: usize) {
        let verdicts = mem::take(&mut settled.verdicts);
        let refused = verdicts.len().saturating_sub(accepted);
        let mut all = Vec::new();
        for given in verdicts {
            // A verdict that was sent without a lease is refused.
            if let Some(lease) = settled.lease_of(given.settlement.partition) {
                let recorded = of_lease(&mut all, lease);
                recorded.published += u64::from(given.is_published());
                recorded.duplicates += u64::from(given.is_duplicate);
                recorded.dead.extend(given.dead);
            }
        }
        if refused == 0 {
            all.into_iter().for_each(|(_, recorded)| self.tell(recorded));
            return;
        }
        // Their partitions have a new owner, who sends them again and settles them itself.
        tracing::warn!(refused, "leases were lost before settling");
        self.ownership.doubt();
        if accepted > 0 {
            self.untold.hold(all);
        }
    }

    /// Leases were renewed; those that are left have lasted.
    pub(super) fn leases_proved(&mut self) {
        let proved = self.untold.proved(self.ownership.leases());
        proved.into_iter().for_each(|recorded| self.tell(recorded));
    }

    fn tell(&mut self, recorded: Recorded) {
        let RelayReport {
            published,
            duplicates,
            dead_letters,
            ..
        } = &mut self.report;
        *published += recorded.published;
        *duplicates += recorded.duplicates;
        *dead_letters += recorded.dead.len() as u64;
        if recorded.published > 0 {
            self.checkup.delivered();
        }
        recorded.dead.iter().for_each(|dead| self.tell_dead_letter(dead));
    }

    fn tell_dead_letter(&self, dead: &DeadMessage) {
        telemetry::dead_letter();
        if self.ownership.keeps(retention::PARTITION) {
            // Until the backlog is counted again, which this relay does.
            self.relay
                .health
                .update(|vitals| vitals.halted += u64::from(dead.halts));
        }
        if let Some(hook) = &self.relay.on_dead_letter
            // The hook is the application's, and the message is recorded already; nothing that the hook touches is used afterwards.
            && catch_unwind(AssertUnwindSafe(|| hook(dead))).is_err()
        {
            tracing::error!(message_id = ?dead.id, "the hook `on_dead_letter` panicked; the relay goes on");
        }
    }
}
