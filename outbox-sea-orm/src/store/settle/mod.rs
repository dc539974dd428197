//! Stores the outcomes of a relay's publish attempts (verdicts).
//!
//! Invariant: nothing is written under a stale epoch. Lease rows are locked in share mode first, so
//! a takeover waits. A relay with an expired lease can settle until another relay takes the lease.
//! Head rows are not locked: settlements do not wait for business transactions.
//!
//! After a crash before the commit, the relay publishes the messages again with the same ids, and
//! broker or inbox drops the duplicates.

pub(super) mod sql;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use outbox_core::store::{RowKey, UNPAUSED_WAIT, storable_error};
use outbox_core::{Lease, Settlement, Verdict};
use sea_orm::DbErr;

use self::sql::{Failure, Rows};
use super::block::{self, Block};
use super::pause::sql::held_until;
use super::row::{read_key, row_key};
use super::session::Session;
use super::{lease, pause, repeat_deadlocks};
use crate::sql::{Key, TIME_MICROS_MAX, micros};

/// Rows per statement. A power of two: see [`Sql::any`](crate::sql::Sql::any). For a list of 1,000
/// keys, MariaDB would scan the table.
const ROWS_MAX: usize = 512;

pub(super) async fn settle(
    db: &Session,
    leases: &[Lease],
    settlements: &[Settlement],
) -> Result<usize, DbErr> {
    let partitions: BTreeSet<u16> = settlements
        .iter()
        .map(|settlement| settlement.partition)
        .collect();
    let mut claimed = leases.to_vec();
    claimed.retain(|lease| partitions.contains(&lease.partition));
    claimed.sort_by_key(|lease| lease.partition);
    if claimed.is_empty() {
        return Ok(0);
    }
    if db.dialect.backend == sea_orm::DbBackend::Postgres
        && let Some(keep) = published_only(settlements)
    {
        let rows: Vec<RowKey> = settlements.iter().map(Settlement::key).collect();
        let statement = sql::publish_claimed(&db.dialect, &claimed, &rows, keep);
        let partition = |row: &sea_orm::QueryResult| row.try_get::<i64>("", "partition_no");
        db.owe_end();
        let owned = db.read(statement, partition).await?;
        return Ok(accepted(&owned, settlements).len());
    }
    repeat_deadlocks!(settle_all(db, &claimed, settlements))
}

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

fn accepted<'s>(owned: &[i64], settlements: &'s [Settlement]) -> Vec<&'s Settlement> {
    let is_accepted = |settlement: &&Settlement| owned.contains(&i64::from(settlement.partition));
    settlements.iter().filter(is_accepted).collect()
}

async fn settle_all(db: &Session, claimed: &[Lease], settlements: &[Settlement]) -> Result<usize, DbErr> {
    let tx = db.begin().await?;
    let partitions = lease::partitions(&lease::lock(&tx, claimed).await?);
    let accepted = accepted(&partitions, settlements);
    if accepted.is_empty() {
        return Ok(0);
    }
    let settling = SettleTransaction {
        tx: &tx,
        partitions: &partitions,
    };
    settling.settle(&accepted).await?;
    tx.commit().await?;
    Ok(accepted.len())
}

#[derive(Debug, Clone)]
struct Found {
    key: Key,
    partition: i64,
    is_sequenced: bool,
    delayed_until: Option<i64>,
    row_id: i64,
    /// Row id of the aggregate's oldest waiting row.
    oldest: Option<i64>,
    now: i64,
}

struct SettleTransaction<'a> {
    tx: &'a Session,
    partitions: &'a [i64],
}

impl SettleTransaction<'_> {
    async fn settle(&self, settlements: &[&Settlement]) -> Result<(), DbErr> {
        let (published, others): (Vec<&Settlement>, Vec<&Settlement>) = settlements
            .iter()
            .partition(|settlement| matches!(settlement.verdict, Verdict::Published { .. }));

        // 1. Settle published messages. Waiting rows are read before deletion.
        let waited: Vec<&Settlement> = published.iter().copied().filter(|row| row.waited).collect();
        let mut found = self.find(&waited).await?;
        let mut groups: BTreeMap<(bool, bool), Vec<RowKey>> = BTreeMap::new();
        for settlement in published {
            if let Verdict::Published { keep } = settlement.verdict {
                let group = groups.entry((settlement.waited, keep)).or_default();
                group.push(settlement.key());
            }
        }
        for ((waited, keep), keys) in groups {
            for keys in keys.chunks(ROWS_MAX) {
                let statement = sql::publish(&self.tx.dialect, self.rows(keys, waited), keep);
                self.tx.execute(statement).await?;
            }
        }
        found.extend(self.find(&others).await?);
        if found.is_empty() {
            return Ok(());
        }

        // 2. Lock pauses, before blocks, as at the end of a pause.
        let taken_for_paused = others.iter().filter(|given| given.verdict == Verdict::Paused);
        let types = taken_for_paused
            .filter_map(|given| found.get(&given.key()))
            .map(|row| row.key.aggregate_type.clone());
        let paused = pause::standing(self.tx, types.collect()).await?;

        // 3. Lock all blocks by key, then change blocks.
        let sequenced = found.values().filter(|row| row.is_sequenced);
        let keys: BTreeSet<Key> = sequenced.map(|row| row.key.clone()).collect();
        let keys: Vec<Key> = keys.into_iter().collect();
        let mut blocks = block::lock(self.tx, &keys).await?;
        let changes = Changes::decide(&others, &found, &paused, &mut blocks);
        block::put(self.tx, &blocks).await?;

        // 4. Change the message rows.
        for ((failure, waited), keys) in &changes.failed {
            for keys in keys.chunks(ROWS_MAX) {
                let statement = sql::fail(&self.tx.dialect, self.rows(keys, *waited), failure);
                self.tx.execute(statement).await?;
            }
        }
        for keys in changes.waiting.chunks(ROWS_MAX) {
            let statement = sql::set_waiting(&self.tx.dialect, self.rows(keys, false));
            self.tx.execute(statement).await?;
        }

        // 5. Remove blocks without waiting messages.
        blocks.retain(|_, block| block.halted_by.is_none());
        let open: Vec<Key> = blocks.into_keys().collect();
        block::end(self.tx, &open).await
    }

    async fn find(&self, settlements: &[&Settlement]) -> Result<HashMap<RowKey, Found>, DbErr> {
        let mut found = HashMap::with_capacity(settlements.len());
        for waited in [false, true] {
            let these = settlements
                .iter()
                .filter(|settlement| settlement.waited == waited);
            let keys: Vec<RowKey> = these.map(|settlement| settlement.key()).collect();
            for keys in keys.chunks(ROWS_MAX) {
                let statement = sql::find(&self.tx.dialect, self.rows(keys, waited));
                for row in self.tx.all(statement).await? {
                    let is = |column| row.try_get::<i64>("", column).map(|flag| flag != 0);
                    let available = row
                        .try_get("", "available_micros")
                        .unwrap_or(Some(TIME_MICROS_MAX));
                    let is_delayed = is("is_delayed")?;
                    let key = row_key(&row)?;
                    let row = Found {
                        key: read_key(&row)?,
                        partition: row.try_get("", "partition_no")?,
                        is_sequenced: is("is_sequenced")?,
                        delayed_until: available.filter(|_| is_delayed),
                        row_id: key.row_id,
                        oldest: row.try_get("", "oldest_row_id")?,
                        now: row.try_get("", "now_micros")?,
                    };
                    found.insert(key, row);
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

#[derive(Debug, Default)]
struct Changes {
    /// A broker often returns one error for many messages.
    failed: BTreeMap<(Failure, bool), Vec<RowKey>>,
    waiting: Vec<RowKey>,
    /// Per aggregate, row id of the oldest message that the settlement makes waiting.
    oldest: BTreeMap<Key, i64>,
}

impl Changes {
    fn decide(
        settlements: &[&Settlement],
        found: &HashMap<RowKey, Found>,
        paused: &BTreeSet<Vec<u8>>,
        blocks: &mut BTreeMap<Key, Block>,
    ) -> Self {
        let mut changes = Self::default();
        for settlement in settlements {
            // An earlier call has settled the row.
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
                    let failure = (*attempt, error.as_deref().map(storable_error));
                    changes.blocks((settlement, row), later(row.now, *delay), failure, blocks);
                }
                Verdict::Paused => {
                    let until = match paused.contains(&row.key.aggregate_type) {
                        true => held_until(&row.key.aggregate_type),
                        false => later(row.now, UNPAUSED_WAIT),
                    };
                    changes.blocks((settlement, row), until, (false, None), blocks);
                }
                Verdict::Dead { error, halt } => {
                    // An aggregate can be halted by only one dead message.
                    let dead =
                        !(*halt && row.is_sequenced) || put(blocks, row, None, Some(settlement.row_id));
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
        let rows = self.failed.entry((failure, settlement.waited)).or_default();
        rows.push(settlement.key());
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
        // An aggregate's oldest waiting message decides when its block ends.
        if self.becomes_oldest(row) {
            block_until(blocks, row, row.delayed_until.unwrap_or(row.now));
        }
        if !settlement.waited {
            self.waiting.push(settlement.key());
        }
    }

    fn becomes_oldest(&mut self, row: &Found) -> bool {
        let noted = self.oldest.get(&row.key).copied();
        let mut others = [row.oldest, noted].into_iter().flatten();
        let is_oldest = others.all(|oldest| row.row_id <= oldest);
        if is_oldest {
            self.oldest.insert(row.key.clone(), row.row_id);
        }
        is_oldest
    }
}

fn block_until(blocks: &mut BTreeMap<Key, Block>, row: &Found, until: i64) {
    put(blocks, row, Some(until), None);
}

/// Returns false, without a change, if the aggregate is halted.
fn put(
    blocks: &mut BTreeMap<Key, Block>,
    row: &Found,
    due_micros: Option<i64>,
    halted_by: Option<i64>,
) -> bool {
    let block = blocks.get(&row.key);
    if block.is_some_and(|block| block.halted_by.is_some()) {
        return false;
    }
    let block = Block {
        partition: row.partition,
        due_micros,
        halted_by,
        is_changed: true,
    };
    blocks.insert(row.key.clone(), block);
    true
}

fn later(now: i64, delay: Duration) -> i64 {
    now.saturating_add(micros(delay)).min(TIME_MICROS_MAX)
}
