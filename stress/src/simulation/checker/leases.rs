//! The checker's books on partition owners. The books use the store's answers and the common clock,
//! never a query.

use std::time::Duration;

use outbox_core::store::{Lease, OwnerId};
use tokio::time::Instant;

use super::{Account, Checker};
use crate::simulation::Invariant;
use crate::simulation::history::Life;

#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) life: Life,
    /// The owner of the leases. A drain of a log relay drains the table twice, with different owner
    /// ids.
    owner: OwnerId,
    epoch: i64,
    expires_at: Instant,
}

impl Checker {
    pub(super) fn holds(&self, partition: u16, epoch: i64) -> bool {
        self.granted(partition)
            .is_some_and(|granted| granted.epoch == epoch)
    }

    pub(in super::super) fn is_owned(&self, partition: u16) -> bool {
        self.granted(partition).is_some()
    }

    pub(super) fn granted(&self, partition: u16) -> Option<Granted> {
        self.leases[usize::from(partition)].filter(|granted| Instant::now() < granted.expires_at)
    }

    /// Registers that leases end earlier. Relays detect a suspension, but not a jump of the store's
    /// clock.
    pub(in super::super) fn aged(&mut self, by: Duration, can_know: bool) {
        for (partition, lease) in (0_u16..).zip(&mut self.leases) {
            let Some(granted) = lease else { continue };
            if !can_know {
                self.misled.push((granted.life, partition, granted.expires_at));
            }
            granted.expires_at = granted.expires_at.checked_sub(by).unwrap_or(granted.expires_at);
        }
    }

    pub(super) fn is_misled(&self, life: Life, partition: u16) -> bool {
        let now = Instant::now();
        let mut misled = self.misled.iter();
        misled.any(|(of, what, until)| *of == life && *what == partition && now < *until)
    }

    pub(in super::super) fn acquired(&mut self, life: Life, owner: OwnerId, leases: &[Lease], ttl: Duration) {
        if leases.is_empty() {
            return;
        }
        self.history
            .note(format!("run {life} is granted {} partitions", leases.len()));
        let expires_at = Instant::now() + ttl;
        for lease in leases {
            if let Some(other) = self.granted(lease.partition)
                && self.wrong.keeps_leases()
            {
                self.violate(
                    Invariant::Exclusive,
                    format!(
                        "partition {} was granted to relay run {life} while {} owned it",
                        lease.partition, other.life
                    ),
                );
            }
            self.excuse_unsettled(life, lease.partition);
            // After a lost release and an expired lease, the relay may acquire the partition again.
            self.excuse_unsettleable(life, lease.partition);
            self.leave_to(life, lease.partition);
            self.end_repeats(lease.partition);
            self.acquired_by[usize::from(lease.partition)] = Some(life);
            self.leases[usize::from(lease.partition)] = Some(Granted {
                life,
                owner,
                epoch: lease.epoch,
                expires_at,
            });
        }
    }

    /// A relay does not repeat a settlement without a response under a new lease.
    fn end_repeats(&mut self, partition: u16) {
        let of_partition = |account: &&mut Account| account.draft.partition == partition;
        for account in self.messages.iter_mut().filter(of_partition) {
            let (permanent, unclassified) = account.faults;
            let repeated = account.attempts.saturating_sub(permanent + unclassified);
            account.may_repeat = account.may_repeat.min(repeated);
            account.may_die_again = false;
        }
    }

    /// Permits the new owner to resend unsettled messages of other owners.
    fn excuse_unsettled(&mut self, new_owner: Life, partition: u16) {
        for (life, account) in (0..).zip(&mut self.lives) {
            account.confirmed.retain(|no| {
                let message = &mut self.messages[*no as usize];
                let is_excused = life != new_owner && message.draft.partition == partition;
                message.excuses += u32::from(is_excused);
                !is_excused
            });
        }
    }

    /// Permits the next owner to resend messages that this relay could not settle.
    fn excuse_unsettleable(&mut self, life: Life, partition: u16) {
        let account = &mut self.lives[life as usize];
        let settles_in_vain = account.settles_in_vain;
        account.confirmed.retain(|no| {
            let message = &mut self.messages[*no as usize];
            let cannot = settles_in_vain || message.was_unrecordable;
            let is_excused = cannot && message.draft.partition == partition;
            message.excuses += u32::from(is_excused);
            !is_excused
        });
    }

    pub(in super::super) fn renewed(&mut self, life: Life, asked: &[Lease], kept: &[Lease], ttl: Duration) {
        self.history.note(format!(
            "run {life} renews {} of {} partitions",
            kept.len(),
            asked.len()
        ));
        for lease in kept {
            let owned = self.holds(lease.partition, lease.epoch) || !self.wrong.keeps_leases();
            self.demand(Invariant::Exclusive, owned, || {
                format!(
                    "relay run {life} renewed partition {} that it did not hold",
                    lease.partition
                )
            });
            if let Some(granted) = &mut self.leases[usize::from(lease.partition)] {
                granted.expires_at = Instant::now() + ttl;
            }
        }
    }

    pub(in super::super) fn released(&mut self, life: Life, leases: &[Lease]) {
        self.history
            .note(format!("run {life} releases {} partitions", leases.len()));
        for lease in leases {
            if self.holds(lease.partition, lease.epoch) {
                self.leases[usize::from(lease.partition)] = None;
            }
        }
    }

    pub(in super::super) fn lets_go(&mut self, life: Life, leases: &[Lease]) {
        for lease in leases {
            self.excuse_unsettleable(life, lease.partition);
        }
    }

    pub(in super::super) fn left(&mut self, life: Life, owner: OwnerId) {
        self.history.note(format!("run {life} leaves"));
        for lease in &mut self.leases {
            *lease = lease.filter(|granted| granted.owner != owner);
        }
    }
}
