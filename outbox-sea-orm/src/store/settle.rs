//! Records what became of messages.
//!
//! Invariant: nothing is written under a stale epoch. The lease rows are locked in share mode first, so a takeover waits until this
//! transaction has ended, and the epochs are compared under that lock. A lease that ran out but that nobody has taken still settles:
//! its epoch is the newest there is.

use std::collections::{BTreeMap, HashMap};

use outbox_core::store::storable_error;
use outbox_core::{Lease, Settlement, Verdict};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};

use super::{begin, leases};
use crate::dialect::Dialect;

/// Rows per statement; a power of two, see [`Sql::any`](crate::dialect::Sql::any).
const ROWS_MAX: usize = 1024;

pub(super) async fn settle(
    db: &DatabaseConnection,
    dialect: &Dialect,
    leases: &[Lease],
    settlements: &[Settlement],
) -> Result<usize, DbErr> {
    let claimed: HashMap<u16, i64> = leases
        .iter()
        .map(|lease| (lease.partition, lease.epoch))
        .collect();
    let mut partitions: Vec<i64> = settlements
        .iter()
        .filter(|settlement| claimed.contains_key(&settlement.partition))
        .map(|settlement| i64::from(settlement.partition))
        .collect();
    partitions.sort_unstable();
    partitions.dedup();
    if partitions.is_empty() {
        return Ok(0);
    }

    let tx = begin(db).await?;
    let rows = tx.query_all_raw(dialect.lock_leases(&partitions)).await?;
    let held: Vec<Lease> = leases::read(&rows)?
        .into_iter()
        .filter(|lease| claimed.get(&lease.partition) == Some(&lease.epoch))
        .collect();
    let verdicts = Verdicts::of(
        settlements
            .iter()
            .filter(|settlement| held.iter().any(|lease| lease.partition == settlement.partition)),
    );
    let partitions = leases::partitions(&held);
    for seqs in verdicts.published.chunks(ROWS_MAX) {
        tx.execute_raw(dialect.settle_published(&partitions, seqs))
            .await?;
    }
    for ((error, parked), seqs) in &verdicts.failed {
        for seqs in seqs.chunks(ROWS_MAX) {
            tx.execute_raw(dialect.settle_failed(&partitions, seqs, error, *parked))
                .await?;
        }
    }
    for seqs in verdicts.halting.chunks(ROWS_MAX) {
        // Head rows last and in the order in which writers lock them.
        for row in tx.query_all_raw(dialect.parked_rows(seqs)).await? {
            tx.execute_raw(dialect.halt(row.try_get("", "seq")?)).await?;
        }
    }
    // A crash before this line leaves the messages pending: they are published again under the same id, and dropped as duplicates.
    tx.commit().await?;
    Ok(verdicts.count)
}

/// Settlements by what is to be written.
#[derive(Default)]
struct Verdicts {
    count: usize,
    published: Vec<i64>,
    /// By error and whether the message is parked: a failing broker gives the same error for many.
    failed: BTreeMap<(String, bool), Vec<i64>>,
    halting: Vec<i64>,
}

impl Verdicts {
    fn of<'a>(settlements: impl Iterator<Item = &'a Settlement>) -> Self {
        let mut verdicts = Self::default();
        for Settlement { seq, verdict, .. } in settlements {
            verdicts.count += 1;
            match verdict {
                Verdict::Published => verdicts.published.push(*seq),
                Verdict::Failed { error } => {
                    verdicts
                        .failed
                        .entry((storable_error(error), false))
                        .or_default()
                        .push(*seq);
                }
                Verdict::Parked { error, halt } => {
                    verdicts
                        .failed
                        .entry((storable_error(error), true))
                        .or_default()
                        .push(*seq);
                    if *halt {
                        verdicts.halting.push(*seq);
                    }
                }
            }
        }
        verdicts
    }
}
