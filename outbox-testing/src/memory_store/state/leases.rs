//! Leases and announcements of the in-memory outbox. Both expire by Tokio's clock.

use std::collections::HashMap;
use std::time::Duration;

use outbox_core::message::PARTITIONS;
use outbox_core::store::{
    Announcement, ExpiredRelay, LEASE_TTL_MAX, Lease, LiveRelay, OwnerId, PartitionOwner, RelayTrouble,
    Relays,
};
use tokio::time::Instant;

#[derive(Debug)]
pub(in super::super) struct Leases {
    rows: Vec<LeaseRow>,
    announced: HashMap<OwnerId, Announced>,
}

#[derive(Debug, Clone)]
struct Announced {
    at: Instant,
    expires_at: Instant,
    announcement: Announcement,
}

impl Announced {
    fn is_live(&self) -> bool {
        let now = Instant::now();
        now < self.expires_at && !is_ahead(self.expires_at)
    }

    fn trouble(&self) -> Option<RelayTrouble> {
        let mut trouble = self.announcement.trouble.clone()?;
        trouble.failing_for += self.at.elapsed();
        Some(trouble)
    }
}

fn is_ahead(expires_at: Instant) -> bool {
    expires_at > Instant::now() + LEASE_TTL_MAX
}

#[derive(Debug, Clone, Copy, Default)]
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
            rows: vec![LeaseRow::default(); usize::from(PARTITIONS)],
            announced: HashMap::new(),
        }
    }
}

impl Leases {
    pub(in super::super) fn announce(
        &mut self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> Relays {
        let now = Instant::now();
        let announced = Announced {
            at: now,
            expires_at: now + ttl,
            announcement: announcement.clone(),
        };
        self.announced.insert(owner, announced);
        self.announced
            .retain(|other, announced| *other == owner || announced.is_live());
        let own = &announcement.registration.destination;
        let mut relays = Relays::default();
        for other in self.announced.values() {
            relays.count(other.announcement.health, 1);
            let registered = &other.announcement.registration.destination;
            let disagrees = registered.is_some() && own.is_some() && registered != own;
            relays.disagreeing += u32::from(disagrees);
        }
        relays
    }

    pub(in super::super) fn acquire(&mut self, owner: OwnerId, ttl: Duration, max: u16) -> Vec<Lease> {
        self.shorten();
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

    fn shorten(&mut self) {
        for (_, expires_at) in self.rows.iter_mut().filter_map(|row| row.owned.as_mut()) {
            if is_ahead(*expires_at) {
                *expires_at = Instant::now() + LEASE_TTL_MAX;
            }
        }
    }

    fn ends(&mut self) -> impl Iterator<Item = &mut Instant> {
        let leases = self.rows.iter_mut().filter_map(|row| row.owned.as_mut());
        let announced = self.announced.values_mut();
        let announced = announced.map(|announced| &mut announced.expires_at);
        leases.map(|(_, expires_at)| expires_at).chain(announced)
    }

    pub(in super::super) fn set_back(&mut self, by: Duration) {
        self.ends().for_each(|end| *end += by);
    }

    pub(in super::super) fn renew(&mut self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Vec<Lease> {
        let owned = leases.iter().copied().filter(|lease| self.holds(owner, lease));
        let owned: Vec<Lease> = owned.collect();
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
        self.ends()
            .for_each(|end| *end = end.checked_sub(by).unwrap_or(*end));
    }

    pub(in super::super) fn owners(&self) -> HashMap<OwnerId, usize> {
        let mut owners = HashMap::new();
        let live = self.rows.iter().filter(|row| row.is_live());
        for (owner, _) in live.filter_map(|row| row.owned) {
            *owners.entry(owner).or_default() += 1;
        }
        owners
    }

    pub(in super::super) fn relays(&self) -> Vec<LiveRelay> {
        let now = Instant::now();
        let live = self.announced.iter().filter(|(_, announced)| announced.is_live());
        let mut relays: Vec<LiveRelay> = live
            .map(|(owner, announced)| LiveRelay {
                owner: *owner,
                name: None,
                health: announced.announcement.health,
                expires_in: announced.expires_at - now,
                registration: (*announced.announcement.registration).clone(),
                trouble: announced.trouble(),
            })
            .collect();
        relays.sort_by_key(|relay| relay.owner);
        relays
    }

    pub(in super::super) fn expired_relays(&self) -> Vec<ExpiredRelay> {
        let expired = self
            .announced
            .iter()
            .filter(|(_, announced)| !announced.is_live());
        let mut relays: Vec<ExpiredRelay> = expired
            .map(|(owner, announced)| ExpiredRelay {
                owner: *owner,
                name: None,
                expired_for: announced.expires_at.elapsed(),
                registration: (*announced.announcement.registration).clone(),
                trouble: announced.trouble(),
            })
            .collect();
        relays.sort_by_key(|relay| relay.owner);
        relays
    }

    pub(in super::super) fn partitions(&self) -> Vec<PartitionOwner> {
        let now = Instant::now();
        let is_ahead = |row: &LeaseRow| row.owned.is_some_and(|(_, expires_at)| is_ahead(expires_at));
        let live = |row: &LeaseRow| row.owned.filter(|_| row.is_live() && !is_ahead(row));
        (0_u16..)
            .zip(&self.rows)
            .map(|(partition, row)| PartitionOwner {
                partition,
                epoch: row.epoch,
                owner: live(row).map(|(owner, _)| owner),
                last_owner: row
                    .owned
                    .filter(|_| !row.is_live() || is_ahead(row))
                    .map(|(owner, _)| owner),
                is_ahead: is_ahead(row),
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
