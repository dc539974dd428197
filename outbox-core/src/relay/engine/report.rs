//! Reports the recorded verdicts: in the report, by metrics, and through the hook for dead letters.
//!
//! Invariant: no verdict is reported that the store may have refused. The store accepts the
//! verdicts of a partition together or not at all, and returns only how many it accepted. If it
//! refused some, the others are reported after a renewal: a lease that lasts was valid at the
//! settlement. A crash or a shutdown before that leaves them unreported.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Shared;
use crate::relay::in_flight::Settling;
use crate::relay::{DeadLetterHook, DeadMessage, RelayReport, retention};
use crate::store::Lease;
use crate::telemetry;

/// The recorded verdicts under one lease.
#[derive(Debug, Default)]
struct RecordedVerdicts {
    published: u64,
    /// Of those, messages that the broker had from an earlier attempt.
    duplicates: u64,
    dead: Vec<DeadMessage>,
}

pub(super) struct Recorder<'a> {
    hook: Option<&'a DeadLetterHook>,
    pub(super) report: RelayReport,
    /// Reported once their leases have proved to last.
    held: Vec<(Lease, RecordedVerdicts)>,
    /// Number of renewals that have begun, in all and before the last refusal.
    renewals: (u64, u64),
}

impl<'a> Recorder<'a> {
    pub(super) fn new(hook: Option<&'a DeadLetterHook>) -> Self {
        Self {
            hook,
            report: RelayReport::default(),
            held: Vec::new(),
            renewals: (0, 0),
        }
    }

    /// A renewal begins.
    pub(super) fn begin_renewal(&mut self) {
        self.renewals.0 += 1;
    }

    fn hold(&mut self, recorded: Vec<(Lease, RecordedVerdicts)>) {
        self.renewals.1 = self.renewals.0;
        for (lease, more) in recorded {
            let held = of_lease(&mut self.held, lease);
            held.published += more.published;
            held.duplicates += more.duplicates;
            held.dead.extend(more.dead);
        }
    }

    /// The store accepted this many of these verdicts.
    pub(super) fn recorded(&mut self, shared: &mut Shared<'_>, mut settled: Settling, accepted: usize) {
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
            all.into_iter()
                .for_each(|(_, recorded)| self.tell(shared, recorded));
            return;
        }
        // Their partitions have a new owner, who sends them again and settles them itself.
        tracing::warn!(refused, "leases were lost before settling");
        shared.ownership.doubt();
        if accepted > 0 {
            self.hold(all);
        }
    }

    /// Leases were renewed, so the owned leases have lasted. A renewal that began before the last
    /// refusal proves nothing.
    pub(super) fn proved(&mut self, shared: &mut Shared<'_>) {
        if self.renewals.0 == self.renewals.1 {
            return;
        }
        for (lease, recorded) in mem::take(&mut self.held) {
            if shared.ownership.leases().contains(&lease) {
                self.tell(shared, recorded);
            }
        }
    }

    fn tell(&mut self, shared: &mut Shared<'_>, recorded: RecordedVerdicts) {
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
            shared.checkup.delivered();
        }
        recorded
            .dead
            .iter()
            .for_each(|dead| self.tell_dead_letter(shared, dead));
    }

    fn tell_dead_letter(&self, shared: &Shared<'_>, dead: &DeadMessage) {
        telemetry::dead_letter();
        if shared.ownership.keeps(retention::PARTITION) {
            // Until this relay counts the backlog again.
            shared
                .health
                .update(|vitals| vitals.halted += u64::from(dead.halts));
        }
        if let Some(hook) = self.hook
            // The hook is the application's, and the message is recorded already; nothing that the
            // hook touches is used afterwards.
            && catch_unwind(AssertUnwindSafe(|| hook(dead))).is_err()
        {
            tracing::error!(message_id = ?dead.id, "the hook `on_dead_letter` panicked; the relay goes on");
        }
    }
}

fn of_lease(all: &mut Vec<(Lease, RecordedVerdicts)>, lease: Lease) -> &mut RecordedVerdicts {
    let found = all.iter().position(|(of, _)| *of == lease);
    let at = found.unwrap_or_else(|| {
        all.push((lease, RecordedVerdicts::default()));
        all.len() - 1
    });
    &mut all[at].1
}
