//! Caches the last returned message per aggregate, to skip searches for predecessors.
//!
//! Invariant: an entry was returned under this epoch, and all later verdicts of the partition were
//! `Published`. A lost entry costs only a search.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use outbox_core::{Aggregate, FetchedRow, Lease, Settlement, Verdict};

use super::ScannedRow;
use crate::sql::Key;

/// Per partition. 64 partitions take at most 8 MiB.
const AGGREGATES_MAX: usize = 4096;

#[derive(Debug, Clone, Default)]
pub(in crate::store) struct Returned(Arc<Mutex<HashMap<u16, Partition>>>);

#[derive(Debug, Default)]
struct Partition {
    epoch: i64,
    hasher: std::hash::RandomState,
    last: HashMap<u64, i64>,
}

impl Partition {
    fn hash(&self, aggregate: &Aggregate) -> u64 {
        self.hasher.hash_one(aggregate)
    }
}

impl Returned {
    pub(in crate::store) fn begin(&self, leases: &[Lease]) {
        self.with(|partitions| {
            for lease in leases {
                let partition = partitions.entry(lease.partition).or_default();
                if partition.epoch != lease.epoch {
                    partition.epoch = lease.epoch;
                    partition.last.clear();
                }
            }
        });
    }

    pub(super) fn missing(&self, rows: Vec<&ScannedRow>) -> Vec<(Key, i64)> {
        self.with(|partitions| {
            rows.into_iter()
                .filter_map(|scanned| {
                    let (row, before) = (&scanned.row, scanned.place - 1);
                    let partition = partitions.get(&row.partition);
                    let last =
                        partition.and_then(|partition| partition.last.get(&partition.hash(&row.aggregate)));
                    (last != Some(&before)).then(|| (Key::from(&row.aggregate), before))
                })
                .collect()
        })
    }

    pub(in crate::store) fn add(&self, rows: &[FetchedRow]) {
        self.with(|partitions| {
            for row in rows {
                let number = row.message.as_ref().ok().and_then(|message| {
                    let is_original = message.event_id.as_uuid() == message.id.as_uuid();
                    message.sequence.filter(|_| is_original)
                });
                let (Some(number), Some(partition)) = (number, partitions.get_mut(&row.partition)) else {
                    continue;
                };
                if partition.last.len() >= AGGREGATES_MAX {
                    partition.last.clear();
                }
                let hash = partition.hash(&row.aggregate);
                partition
                    .last
                    .insert(hash, i64::try_from(number).unwrap_or(i64::MAX));
            }
        });
    }

    /// Unpublished messages may become pending.
    pub(in crate::store) fn settle(&self, settlements: &[Settlement]) {
        let is_unpublished =
            |settlement: &&Settlement| !matches!(settlement.verdict, Verdict::Published { .. });
        let mut unpublished = settlements.iter().filter(is_unpublished).peekable();
        if unpublished.peek().is_some() {
            self.with(|partitions| {
                for settlement in unpublished {
                    if let Some(partition) = partitions.get_mut(&settlement.partition) {
                        partition.last.clear();
                    }
                }
            });
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<u16, Partition>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
