//! Records the verdicts of a relay about messages.
//!
//! Invariant: nothing is written under a stale epoch. The lease rows are locked in share mode first, so a takeover waits for the end of this
//! transaction, and the epochs are compared under that lock. A lease that ran out, and that no other relay has taken, still settles: its epoch
//! is the newest one. Head rows are not touched, so settling does not wait for business transactions.
//!
//! A crash before the commit leaves the messages as they were. They are published again under the same id, and dropped as duplicates.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use outbox_core::store::{RowKey, UNPAUSED_WAIT, storable_error};
use outbox_core::{Lease, MessageId, Settlement, Verdict};
use sea_orm::DbErr;
use uuid::Uuid;

use super::blocks::{self, Block};
use super::session::Session;
use super::waiting::read_key;
use super::{leases, pauses, repeat_deadlocks};
use crate::dialect::key::Key;
use crate::dialect::pauses::held_until;
#[cfg(feature = "postgres")]
use crate::dialect::postgres;
use crate::dialect::settle::{Failure, Rows};
use crate::dialect::{Dialect, TIME_MICROS_MAX, micros};

/// Rows per statement. A power of two: see [`Sql::any`](crate::sql::Sql::any). Less than 1,000: MariaDB turns longer lists into a join, and scans the
/// table for it.
const ROWS_MAX: usize = 512;

pub(super) async fn settle(
    db: &Session,
    dialect: &Dialect,
    leases: &[Lease],
    settlements: &[Settlement],
) -> Result<usize, DbErr> {
    let claimed: BTreeMap<u16, i64> = leases
        .iter()
        .map(|lease| (lease.partition, lease.epoch))
        .collect();
    let partitions: BTreeSet<u16> = settlements
        .iter()
        .map(|settlement| settlement.partition)
        .collect();
    let claimed: Vec<Lease> = partitions
        .into_iter()
        .filter_map(|partition| {
            let epoch = *claimed.get(&partition)?;
            Some(Lease { partition, epoch })
        })
        .collect();
    if claimed.is_empty() {
        return Ok(0);
    }
    #[cfg(feature = "postgres")]
    if dialect.backend == sea_orm::DbBackend::Postgres
        && let Some(keep) = published_only(settlements)
    {
        let rows: Vec<RowKey> = settlements.iter().map(Settlement::key).collect();
        let statement = postgres::settle_published(dialect, &claimed, &rows, keep);
        let rows = db.query_all_raw(statement).await?;
        return accepted_count(&rows, settlements);
    }
    repeat_deadlocks!(settle_all(db, dialect, &claimed, settlements))
}

/// If all messages were pending and are published, and all are kept or none is, one statement settles them: whether they are kept.
#[cfg(feature = "postgres")]
fn published_only(settlements: &[Settlement]) -> Option<bool> {
    let keep = |settlement: &Settlement| match settlement.verdict {
        Verdict::Published { keep } if !settlement.waited => Some(keep),
        _ => None,
    };
    let first = keep(settlements.first()?)?;
    settlements
        .iter()
        .all(|settlement| keep(settlement) == Some(first))
        .then_some(first)
}

#[cfg(feature = "postgres")]
fn accepted_count(rows: &[sea_orm::QueryResult], settlements: &[Settlement]) -> Result<usize, DbErr> {
    let owned = rows
        .iter()
        .map(|row| row.try_get::<i64>("", "partition_no"))
        .collect::<Result<BTreeSet<_>, _>>()?;
    let is_accepted = |settlement: &&Settlement| owned.contains(&i64::from(settlement.partition));
    Ok(settlements.iter().filter(is_accepted).count())
}

async fn settle_all(
    db: &Session,
    dialect: &Dialect,
    claimed: &[Lease],
    settlements: &[Settlement],
) -> Result<usize, DbErr> {
    let tx = db.begin().await?;
    let rows = tx
        .query_all_raw(dialect.lock_leases(&leases::partitions(claimed)))
        .await?;
    let mut owned = leases::read(&rows)?;
    owned.retain(|lease| claimed.contains(lease));
    let partitions = leases::partitions(&owned);
    let accepted: Vec<&Settlement> = settlements
        .iter()
        .filter(|settlement| partitions.contains(&i64::from(settlement.partition)))
        .collect();
    if accepted.is_empty() {
        return Ok(0);
    }
    let settling = Settling {
        tx: &tx,
        dialect,
        partitions: &partitions,
    };
    settling.settle(&accepted).await?;
    tx.commit().await?;
    Ok(accepted.len())
}

/// A row, as far as settling needs to know it.
#[derive(Debug, Clone)]
struct Found {
    key: Key,
    partition: i64,
    is_sequenced: bool,
    /// When it is due, if it is delayed. In microseconds since 1970.
    delayed_until: Option<i64>,
    /// Its place in its aggregate ([`Dialect::place`]).
    place: i64,
    /// The place of the oldest waiting row of its aggregate. Not looked up for a row that waited
    /// and is not delayed.
    oldest: Option<i64>,
    now: i64,
}

struct Settling<'a> {
    tx: &'a Session,
    dialect: &'a Dialect,
    partitions: &'a [i64],
}

impl Settling<'_> {
    async fn settle(&self, settlements: &[&Settlement]) -> Result<(), DbErr> {
        let is_published =
            |settlement: &&&Settlement| matches!(settlement.verdict, Verdict::Published { .. });
        let (published, others): (Vec<&Settlement>, Vec<&Settlement>) = settlements
            .iter()
            .partition(|settlement| is_published(settlement));

        // 1. Published messages. The aggregates of those that waited must be read before their rows are gone.
        let waited: Vec<&Settlement> = published.iter().copied().filter(|row| row.waited).collect();
        let mut found = self.find(&waited).await?;
        let mut groups: BTreeMap<(bool, bool), Vec<RowKey>> = BTreeMap::new();
        for settlement in published {
            if let Verdict::Published { keep } = settlement.verdict {
                groups
                    .entry((settlement.waited, keep))
                    .or_default()
                    .push(settlement.key());
            }
        }
        for ((waited, keep), keys) in groups {
            for keys in keys.chunks(ROWS_MAX) {
                let statement = self.dialect.settle_published(self.rows(keys, waited), keep);
                self.tx.execute_raw(statement).await?;
            }
        }
        found.extend(self.find(&others).await?);
        if found.is_empty() {
            return Ok(());
        }

        // 2. The pauses that hold messages, before the blocks, as finishing a pause does.
        let taken_for_paused = others.iter().filter(|given| given.verdict == Verdict::Paused);
        let types = taken_for_paused
            .filter_map(|given| found.get(&given.key()))
            .map(|row| row.key.aggregate_type.clone());
        let paused = pauses::standing(self.tx, self.dialect, types.collect()).await?;

        // 3. The blocks, all of them locked in one order before the first is changed.
        let keys: BTreeSet<Key> = found
            .values()
            .filter(|row| row.is_sequenced)
            .map(|row| row.key.clone())
            .collect();
        let keys: Vec<Key> = keys.into_iter().collect();
        let mut blocks = blocks::lock(self.tx, self.dialect, &keys).await?;
        let changes = Changes::decide(&others, &found, &paused, &mut blocks);
        blocks::put(self.tx, self.dialect, &blocks).await?;

        // 4. The rows.
        for ((failure, waited), keys) in &changes.failed {
            for keys in keys.chunks(ROWS_MAX) {
                let statement = self.dialect.settle_failed(self.rows(keys, *waited), failure);
                self.tx.execute_raw(statement).await?;
            }
        }
        for keys in changes.waiting.chunks(ROWS_MAX) {
            let statement = self.dialect.set_waiting(self.rows(keys, false));
            self.tx.execute_raw(statement).await?;
        }

        // 5. Remove blocks for which nothing waits any more, among those that were locked or written above and are not halted.
        let open: Vec<Key> = blocks
            .into_iter()
            .filter(|(_, block)| block.halted_by.is_none())
            .map(|(key, _)| key)
            .collect();
        blocks::end(self.tx, self.dialect, &open).await
    }

    async fn find(&self, settlements: &[&Settlement]) -> Result<HashMap<RowKey, Found>, DbErr> {
        let mut found = HashMap::with_capacity(settlements.len());
        for waited in [false, true] {
            let keys: Vec<RowKey> = settlements
                .iter()
                .filter(|settlement| settlement.waited == waited)
                .map(|settlement| settlement.key())
                .collect();
            for keys in keys.chunks(ROWS_MAX) {
                let statement = self.dialect.rows_to_settle(self.rows(keys, waited));
                for row in self.tx.query_all_raw(statement).await? {
                    let is = |column| row.try_get::<i64>("", column).map(|flag| flag != 0);
                    // SQLite keeps any type in any column. A text counts as later than any time.
                    let available: Option<i64> = row
                        .try_get("", "available_micros")
                        .unwrap_or(Some(TIME_MICROS_MAX));
                    let is_delayed = is("is_delayed")?;
                    let key = RowKey {
                        row_id: row.try_get("", "row_id")?,
                        id: row.try_get::<Uuid>("", "id").ok().map(MessageId::from),
                    };
                    found.insert(
                        key,
                        Found {
                            key: read_key(&row)?,
                            partition: row.try_get("", "partition_no")?,
                            is_sequenced: is("is_sequenced")?,
                            delayed_until: available.filter(|_| is_delayed),
                            place: row.try_get("", "place")?,
                            oldest: row.try_get("", "oldest_place")?,
                            now: row.try_get("", "now_micros")?,
                        },
                    );
                }
            }
        }
        Ok(found)
    }

    fn rows<'r>(&'r self, keys: &'r [RowKey], waited: bool) -> Rows<'r> {
        Rows {
            partitions: self.partitions,
            keys,
            waited,
        }
    }
}

/// The changes of rows.
#[derive(Debug, Default)]
struct Changes {
    /// Rows by failure, and by whether the rows waited: a failing broker gives many messages the
    /// same error.
    failed: BTreeMap<(Failure, bool), Vec<RowKey>>,
    /// Pending rows that become waiting.
    waiting: Vec<RowKey>,
    /// By aggregate, the place of the oldest row that these verdicts make waiting.
    oldest: BTreeMap<Key, i64>,
}

impl Changes {
    /// Derives the changes from the verdicts, in their order. Changes the blocks in memory.
    fn decide(
        settlements: &[&Settlement],
        found: &HashMap<RowKey, Found>,
        paused: &BTreeSet<Vec<u8>>,
        blocks: &mut BTreeMap<Key, Block>,
    ) -> Self {
        let mut changes = Self::default();
        for settlement in settlements {
            // A row that is not found was settled by an earlier call.
            let Some(row) = found.get(&settlement.key()) else {
                continue;
            };
            match &settlement.verdict {
                Verdict::Published { .. } => {}
                Verdict::Waits => changes.waits(settlement, row, blocks),
                Verdict::Blocked {
                    delay,
                    error,
                    attempt,
                } => {
                    let error = error.as_deref().map(storable_error);
                    changes.blocks(
                        (settlement, row),
                        later(row.now, *delay),
                        (*attempt, error),
                        blocks,
                    );
                }
                Verdict::Paused => {
                    let until = match paused.contains(&row.key.aggregate_type) {
                        true => held_until(&row.key.aggregate_type),
                        false => later(row.now, UNPAUSED_WAIT),
                    };
                    changes.blocks((settlement, row), until, (false, None), blocks);
                }
                Verdict::Dead { error, halt } => {
                    // Only one message at a time halts an aggregate; the next one waits for its turn.
                    let dead = !(*halt && row.is_sequenced) || halt_by(blocks, row, settlement.row_id);
                    let failure = Failure {
                        dead,
                        attempt: true,
                        error: Some(storable_error(error)),
                        until_micros: None,
                    };
                    changes.fail(failure, settlement);
                }
            }
        }
        changes
    }

    /// The row waits, and its aggregate until a time.
    fn blocks(
        &mut self,
        (settlement, row): (&Settlement, &Found),
        until: i64,
        (attempt, error): (bool, Option<String>),
        blocks: &mut BTreeMap<Key, Block>,
    ) {
        if row.is_sequenced {
            block_until(blocks, row, until);
            self.becomes_oldest(row);
        }
        let failure = Failure {
            dead: false,
            attempt,
            error,
            until_micros: (!row.is_sequenced).then_some(until),
        };
        self.fail(failure, settlement);
    }

    fn fail(&mut self, failure: Failure, settlement: &Settlement) {
        self.failed
            .entry((failure, settlement.waited))
            .or_default()
            .push(settlement.key());
    }

    fn waits(&mut self, settlement: &Settlement, row: &Found, blocks: &mut BTreeMap<Key, Block>) {
        if !row.is_sequenced {
            if row.delayed_until.is_some() && !settlement.waited {
                self.waiting.push(settlement.key());
            }
            return;
        }
        if row.delayed_until.is_none() && (settlement.waited || !blocks.contains_key(&row.key)) {
            return;
        }
        // The oldest waiting message of an aggregate decides when its block ends. A halted aggregate stays halted.
        if self.becomes_oldest(row) {
            block_until(blocks, row, row.delayed_until.unwrap_or(row.now));
        }
        if !settlement.waited {
            self.waiting.push(settlement.key());
        }
    }

    /// Notes that a row waits. Returns whether it is now the oldest waiting row of its aggregate.
    fn becomes_oldest(&mut self, row: &Found) -> bool {
        let noted = self.oldest.get(&row.key).copied();
        let is_oldest = [row.oldest, noted]
            .into_iter()
            .flatten()
            .all(|oldest| row.place <= oldest);
        if is_oldest {
            self.oldest.insert(row.key.clone(), row.place);
        }
        is_oldest
    }
}

/// Blocks the aggregate of a row until a time. A halted aggregate stays halted.
fn block_until(blocks: &mut BTreeMap<Key, Block>, row: &Found, until: i64) {
    put(blocks, row, Some(until), None);
}

/// Halts the aggregate of a row. Returns false if it was halted already.
fn halt_by(blocks: &mut BTreeMap<Key, Block>, row: &Found, row_id: i64) -> bool {
    put(blocks, row, None, Some(row_id))
}

/// Changes the block of a row's aggregate. Returns false, and changes nothing, if the aggregate is halted.
fn put(
    blocks: &mut BTreeMap<Key, Block>,
    row: &Found,
    due_micros: Option<i64>,
    halted_by: Option<i64>,
) -> bool {
    if blocks
        .get(&row.key)
        .is_some_and(|block| block.halted_by.is_some())
    {
        return false;
    }
    blocks.insert(
        row.key.clone(),
        Block {
            partition: row.partition,
            due_micros,
            halted_by,
            is_changed: true,
        },
    );
    true
}

/// A time after a delay, within what every database can hold.
fn later(now: i64, delay: Duration) -> i64 {
    now.saturating_add(micros(delay)).min(TIME_MICROS_MAX)
}
