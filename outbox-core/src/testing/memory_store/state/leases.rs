//! Leases and announcements of the in-memory outbox. Both run out by Tokio's clock.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::message::PARTITIONS;
use crate::store::{Fitness, Lease, LiveRelay, OwnerId, PartitionOwner, Relays};

#[derive(Debug)]
pub(in super::super) struct Leases {
    rows: Vec<LeaseRow>,
    /// Announced relays, each with the end and the fitness of its announcement.
    announced: HashMap<OwnerId, (Instant, Fitness)>,
}

#[derive(Debug, Clone, Copy)]
struct LeaseRow {
    epoch: i64,
    owned: Option<(OwnerId, Instant)>,
}

impl LeaseRow {
    fn is_live(&self) -> bool {
        self.owned
            .is_some_and(|(_, expires_at)| Instant::now() < expires_at)
    }
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            rows: vec![
                LeaseRow {
                    epoch: 0,
                    owned: None
                };
                usize::from(PARTITIONS)
            ],
            announced: HashMap::new(),
        }
    }
}

impl Leases {
    pub(in super::super) fn announce(&mut self, owner: OwnerId, ttl: Duration, fitness: Fitness) -> Relays {
        let now = Instant::now();
        self.announced.insert(owner, (now + ttl, fitness));
        self.announced
            .retain(|other, (expires_at, _)| *other == owner || now < *expires_at);
        let mut relays = Relays::default();
        for (_, fitness) in self.announced.values() {
            relays.count(*fitness, 1);
        }
        relays
    }

    pub(in super::super) fn acquire(&mut self, owner: OwnerId, ttl: Duration, max: u16) -> Vec<Lease> {
        let expires_at = Instant::now() + ttl;
        (0_u16..)
            .zip(&mut self.rows)
            .filter(|(_, row)| !row.is_live())
            .take(usize::from(max))
            .map(|(partition, row)| {
                row.epoch += 1;
                row.owned = Some((owner, expires_at));
                Lease {
                    partition,
                    epoch: row.epoch,
                }
            })
            .collect()
    }

    pub(in super::super) fn renew(&mut self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Vec<Lease> {
        let owned: Vec<Lease> = leases
            .iter()
            .copied()
            .filter(|lease| self.holds(owner, lease))
            .collect();
        for lease in &owned {
            self.rows[usize::from(lease.partition)].owned = Some((owner, Instant::now() + ttl));
        }
        owned
    }

    pub(in super::super) fn release(&mut self, owner: OwnerId, leases: &[Lease]) {
        for lease in leases {
            if self.holds(owner, lease) {
                self.rows[usize::from(lease.partition)].owned = None;
            }
        }
    }

    pub(in super::super) fn leave(&mut self, owner: OwnerId) {
        self.announced.remove(&owner);
        for row in &mut self.rows {
            row.owned = row.owned.filter(|(holder, _)| *holder != owner);
        }
    }

    fn holds(&self, owner: OwnerId, lease: &Lease) -> bool {
        self.is_current(lease)
            && self.rows[usize::from(lease.partition)]
                .owned
                .is_some_and(|(holder, _)| holder == owner)
    }

    /// Whether the lease is live and no other relay has acquired the partition since.
    pub(super) fn is_current(&self, lease: &Lease) -> bool {
        self.rows
            .get(usize::from(lease.partition))
            .is_some_and(|row| row.epoch == lease.epoch && row.is_live())
    }

    pub(in super::super) fn expire(&mut self) {
        let now = Instant::now();
        for (_, expires_at) in self.rows.iter_mut().filter_map(|row| row.owned.as_mut()) {
            *expires_at = now;
        }
    }

    pub(in super::super) fn age(&mut self, by: Duration) {
        let leases = self.rows.iter_mut().filter_map(|row| row.owned.as_mut());
        let ends = leases.map(|(_, expires_at)| expires_at);
        for end in ends.chain(self.announced.values_mut().map(|(expires_at, _)| expires_at)) {
            *end = end.checked_sub(by).unwrap_or(*end);
        }
    }

    /// Number of live leases of each owner.
    pub(in super::super) fn owners(&self) -> HashMap<OwnerId, usize> {
        let mut owners = HashMap::new();
        for (owner, _) in self
            .rows
            .iter()
            .filter(|row| row.is_live())
            .filter_map(|row| row.owned)
        {
            *owners.entry(owner).or_default() += 1;
        }
        owners
    }

    /// The announced relays whose announcement has not run out.
    pub(in super::super) fn relays(&self) -> Vec<LiveRelay> {
        let now = Instant::now();
        let mut relays: Vec<LiveRelay> = self
            .announced
            .iter()
            .filter(|(_, (expires_at, _))| now < *expires_at)
            .map(|(owner, (expires_at, fitness))| LiveRelay {
                owner: *owner,
                // All relays of this store are in one process.
                name: None,
                fitness: *fitness,
                expires_in: *expires_at - now,
            })
            .collect();
        relays.sort_by_key(|relay| relay.owner);
        relays
    }

    /// All partitions with their live owners, or those whose lease has run out.
    pub(in super::super) fn partitions(&self) -> Vec<PartitionOwner> {
        let now = Instant::now();
        let live = |row: &LeaseRow| row.owned.filter(|_| row.is_live());
        (0_u16..)
            .zip(&self.rows)
            .map(|(partition, row)| PartitionOwner {
                partition,
                epoch: row.epoch,
                owner: live(row).map(|(owner, _)| owner),
                last_owner: row.owned.filter(|_| !row.is_live()).map(|(owner, _)| owner),
                expires_in: live(row).map_or(Duration::ZERO, |(_, expires_at)| {
                    expires_at.saturating_duration_since(now)
                }),
            })
            .collect()
    }

    pub(in super::super) fn current(&self) -> Vec<Lease> {
        (0_u16..)
            .zip(&self.rows)
            .map(|(partition, row)| Lease {
                partition,
                epoch: row.epoch,
            })
            .collect()
    }
}
