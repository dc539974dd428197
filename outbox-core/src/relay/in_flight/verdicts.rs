//! Verdicts until the store has taken them.
//!
//! Invariant: a verdict that the store did not take stays and goes first, for as long as the lease lasts under which it was given. After that, others may have
//! decided otherwise. That the broker confirmed a message is a fact, which outlives the lease.

use std::mem;

use tokio::time::Instant;

use super::lanes::Key;
use crate::relay::DeadMessage;
use crate::store::{FetchedRow, Lease, Settlement, Verdict};

#[derive(Debug, Default)]
pub(super) struct Verdicts {
    unsettled: Vec<Given>,
    /// When the oldest of them was given.
    since: Option<Instant>,
    /// On their way to the store.
    settling: Settling,
    /// How many of both set aside a message that a fetch said has to wait.
    set_aside: usize,
}

/// A verdict, and what follows once the store has taken it.
#[derive(Debug)]
pub(in crate::relay) struct Given {
    pub(in crate::relay) settlement: Settlement,
    /// The lane that it closes.
    pub(super) closes: Option<Key>,
    /// To be told then.
    pub(in crate::relay) dead: Option<DeadMessage>,
    /// It was published, and the broker had it from an earlier attempt.
    pub(in crate::relay) is_duplicate: bool,
    /// It sets aside a message that a fetch said has to wait.
    pub(super) is_set_aside: bool,
}

/// Verdicts of one settlement, and the leases that they were sent with.
#[derive(Debug, Default)]
pub(in crate::relay) struct Settling {
    pub(in crate::relay) verdicts: Vec<Given>,
    pub(in crate::relay) leases: Vec<Lease>,
}

impl Settling {
    /// The lease of a partition.
    pub(in crate::relay) fn lease_of(&self, partition: u16) -> Option<Lease> {
        self.leases
            .iter()
            .find(|lease| lease.partition == partition)
            .copied()
    }
}

impl Given {
    pub(super) fn new(settlement: Settlement) -> Self {
        Self {
            settlement,
            closes: None,
            dead: None,
            is_duplicate: false,
            is_set_aside: false,
        }
    }

    pub(super) fn on(row: &FetchedRow, verdict: Verdict) -> Self {
        Self::new(Settlement {
            row_id: row.row_id,
            partition: row.partition,
            waited: row.waited,
            verdict,
        })
    }

    /// Whether it says that the broker confirmed the message.
    pub(in crate::relay) fn is_published(&self) -> bool {
        matches!(self.settlement.verdict, Verdict::Published { .. })
    }
}

impl Verdicts {
    pub(super) fn give(&mut self, given: Given) {
        self.set_aside += usize::from(given.is_set_aside);
        self.since.get_or_insert_with(Instant::now);
        self.unsettled.push(given);
    }

    /// Whether something is being set aside.
    pub(super) fn is_setting_aside(&self) -> bool {
        self.set_aside > 0
    }

    /// How many are to be settled.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// When the oldest of them was given.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// All that the store did not take yet, those on their way included.
    pub(super) fn not_taken(&self) -> impl Iterator<Item = &Given> {
        self.unsettled.iter().chain(&self.settling.verdicts)
    }

    /// How many these are.
    pub(super) fn not_taken_count(&self) -> usize {
        self.unsettled.len() + self.settling.verdicts.len()
    }

    /// All go to the store, with these leases.
    pub(super) fn begin_settle(&mut self, leases: Vec<Lease>) -> Vec<Settlement> {
        self.since = None;
        let verdicts = mem::take(&mut self.unsettled);
        let settlements = verdicts.iter().map(|given| given.settlement.clone()).collect();
        self.settling = Settling { verdicts, leases };
        settlements
    }

    /// The store took the verdicts that were on their way, or refused them for good.
    pub(super) fn settled(&mut self) -> Settling {
        let settled = mem::take(&mut self.settling);
        self.ended(&settled.verdicts);
        settled
    }

    /// The store may not have taken the verdicts that were on their way: confirmations, and those whose lease is still owned, go first next time. Returns the
    /// others, which are dropped.
    pub(super) fn not_settled(&mut self, owned: &[Lease]) -> Vec<Given> {
        let mut settling = mem::take(&mut self.settling);
        let verdicts = mem::take(&mut settling.verdicts);
        let lives = |given: &Given| {
            let lease = settling.lease_of(given.settlement.partition);
            given.is_published() || lease.is_some_and(|lease| owned.contains(&lease))
        };
        let (mut kept, dropped): (Vec<_>, Vec<_>) = verdicts.into_iter().partition(lives);
        kept.append(&mut self.unsettled);
        self.unsettled = kept;
        self.ended(&dropped);
        dropped
    }

    /// Leases of these partitions are lost. Returns the verdicts that are dropped. Those on their way are looked at when the settlement has failed.
    pub(super) fn lose(&mut self, partitions: &[u16]) -> Vec<Given> {
        let is_lost =
            |given: &mut Given| !given.is_published() && partitions.contains(&given.settlement.partition);
        let dropped: Vec<Given> = self.unsettled.extract_if(.., is_lost).collect();
        self.ended(&dropped);
        dropped
    }

    fn ended(&mut self, ended: &[Given]) {
        self.set_aside -= ended.iter().filter(|given| given.is_set_aside).count();
        if self.unsettled.is_empty() {
            self.since = None;
        } else {
            self.since.get_or_insert_with(Instant::now);
        }
    }
}
