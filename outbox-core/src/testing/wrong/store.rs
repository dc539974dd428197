//! Stores with one mistake each.
//!
//! They change what goes into or comes out of a correct [`MemoryStore`]. Absent here: mistakes in writing, because a store does not
//! write; see [`WrongWriter`](super::WrongWriter).

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::headers::Headers;
use crate::message::{Aggregate, MessageId, PARTITIONS};
use crate::store::{
    Backlog, FetchRequest, FetchedRow, Lease, OutboxAdmin, OutboxStore, OwnerId, ParkedMessage, Settlement,
    StoreError, Verdict,
};
use crate::testing::conformance::store::RowStatus;
use crate::testing::{MemoryStore, StoredRow};

/// What a [`WrongStore`] does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMistake {
    /// Grants partitions that somebody holds.
    GrantsHeldLeases,
    /// Grants more partitions than asked for.
    IgnoresMax,
    /// Grants partitions again under the epoch they had before.
    ReusesEpochs,
    /// Grants nothing until the holder gives something back.
    LeasesForEver,
    /// Renews whatever it is asked to.
    RenewsBlindly,
    /// Keeps released partitions until they run out.
    ForgetsReleases,
    /// Frees what is released, whoever holds it now.
    ReleasesForOthers,
    /// Remembers a position and fetches what comes after it, so that late commits are skipped.
    FetchesByCursor,
    /// Picks rows in no particular order, as `SKIP LOCKED` on rows does.
    FetchesOutOfOrder,
    /// Hands out what is published already.
    FetchesPublished,
    /// Hands out messages of all partitions.
    IgnoresPartitions,
    /// Hands out more than asked for.
    IgnoresLimit,
    /// Hands out messages of aggregates that back off.
    IgnoresExclusions,
    /// Compares aggregate ids as a case-insensitive collation does.
    FoldsCase,
    /// Hands out what follows a delayed message.
    OvertakesDelayed,
    /// Leaves the application's headers behind.
    DropsHeaders,
    /// Leaves unreadable rows out, so that nobody hears of them.
    HidesUnreadable,
    /// Fails the fetch because of one unreadable row.
    FailsOnUnreadable,
    /// Records verdicts under any epoch.
    AcceptsStaleEpochs,
    /// Refuses all verdicts if one lease is stale.
    AllOrNothing,
    /// Answers verdicts with `Ok` and forgets them.
    LosesSettlements,
    /// Does not count attempts.
    ForgetsAttempts,
    /// Counts rows that changed, so that repeating a verdict looks like a lost lease.
    CountsChangedRows,
    /// Fails on error texts that a column cannot hold, as PostgreSQL does on NUL.
    RefusesOddErrors,
    /// Halts no aggregate.
    NeverHalts,
    /// Halts the aggregate of every parked message.
    AlwaysHalts,
    /// Says nothing of parked messages in the backlog.
    HidesParked,
    /// Lists parked messages newest first.
    ListsParkedBackwards,
    /// Says that it retried, and does not.
    RetryDoesNothing,
    /// Makes the message pending and leaves its aggregate halted.
    RetryKeepsHalt,
    /// Says that it retried what was not parked.
    RetriesAnything,
    /// Says that it skipped, and does not.
    SkipDoesNothing,
    /// Says that it skipped what was not parked.
    SkipsAnything,
}

/// A store with one mistake.
#[derive(Debug)]
pub struct WrongStore {
    inner: MemoryStore,
    mistake: StoreMistake,
    memory: Mutex<Memory>,
}

/// What some mistakes remember.
#[derive(Debug, Default)]
struct Memory {
    cursor: i64,
    leased: bool,
    still_halted: HashSet<Aggregate>,
}

impl WrongStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: MemoryStore, mistake: StoreMistake) -> Self {
        Self {
            inner,
            mistake,
            memory: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, wanted: impl Fn(&StoredRow) -> bool) -> Vec<StoredRow> {
        self.inner.rows().into_iter().filter(wanted).collect()
    }

    /// Changes what was fetched.
    fn spoil(&self, rows: &mut Vec<FetchedRow>, request: &FetchRequest<'_>) -> Result<(), StoreError> {
        let mut memory = self.memory();
        match self.mistake {
            StoreMistake::FetchesByCursor => {
                rows.retain(|row| row.seq > memory.cursor);
                memory.cursor = rows.iter().map(|row| row.seq).fold(memory.cursor, i64::max);
            }
            StoreMistake::FetchesOutOfOrder => rows.reverse(),
            StoreMistake::FetchesPublished => {
                rows.extend(
                    self.find(|row| row.status == RowStatus::Published)
                        .into_iter()
                        .map(fetched),
                );
            }
            StoreMistake::FoldsCase => {
                let folded = |aggregate: &Aggregate| aggregate.id.to_lowercase();
                rows.retain(|row| {
                    !request
                        .excluding
                        .iter()
                        .any(|e| folded(e) == folded(&row.aggregate))
                });
            }
            StoreMistake::OvertakesDelayed => {
                let known: HashSet<i64> = rows.iter().map(|row| row.seq).collect();
                let due = |row: &StoredRow| row.status == RowStatus::Pending && row.available_at.is_none();
                rows.extend(
                    self.find(|row| due(row) && !known.contains(&row.seq))
                        .into_iter()
                        .map(fetched),
                );
            }
            StoreMistake::DropsHeaders => {
                for message in rows.iter_mut().filter_map(|row| row.message.as_mut().ok()) {
                    message.headers = Headers::default();
                }
            }
            StoreMistake::HidesUnreadable => rows.retain(|row| row.message.is_ok()),
            StoreMistake::FailsOnUnreadable => {
                if let Some(context) = rows.iter().find_map(|row| row.message.as_ref().err()) {
                    return Err(StoreError::Corrupt {
                        context: context.clone(),
                    });
                }
            }
            StoreMistake::RetryKeepsHalt => rows.retain(|row| !memory.still_halted.contains(&row.aggregate)),
            _ => {}
        }
        Ok(())
    }
}

fn fetched(row: StoredRow) -> FetchedRow {
    FetchedRow {
        seq: row.seq,
        partition: row.aggregate().partition(),
        aggregate: row.aggregate().clone(),
        attempts: row.attempts,
        message: Ok(row.message),
    }
}

impl OutboxStore for WrongStore {
    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        match self.mistake {
            StoreMistake::GrantsHeldLeases => self.inner.expire_leases(),
            StoreMistake::IgnoresMax => return self.inner.acquire(owner, ttl, PARTITIONS).await,
            StoreMistake::LeasesForEver if self.memory().leased => return Ok(Vec::new()),
            _ => {}
        }
        let mut leases = self.inner.acquire(owner, ttl, max).await?;
        self.memory().leased = true;
        if self.mistake == StoreMistake::ReusesEpochs {
            for lease in &mut leases {
                lease.epoch = 1;
            }
        }
        Ok(leases)
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        if self.mistake == StoreMistake::RenewsBlindly {
            return Ok(leases.to_vec());
        }
        self.inner.renew(owner, leases, ttl).await
    }

    async fn release(&self, owner: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        self.memory().leased = false;
        match self.mistake {
            StoreMistake::ForgetsReleases => return Ok(()),
            StoreMistake::ReleasesForOthers => self.inner.expire_leases(),
            _ => {}
        }
        self.inner.release(owner, leases).await
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Vec<FetchedRow>, StoreError> {
        let all = self.inner.current_leases();
        let wrong = match self.mistake {
            StoreMistake::IgnoresPartitions => FetchRequest {
                leases: &all,
                ..request
            },
            StoreMistake::IgnoresLimit => FetchRequest {
                limit: NonZeroU32::MAX,
                ..request
            },
            StoreMistake::IgnoresExclusions => FetchRequest {
                excluding: &[],
                ..request
            },
            _ => request,
        };
        let mut rows = self.inner.fetch(wrong).await?;
        self.spoil(&mut rows, &request)?;
        Ok(rows)
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        let current = self.inner.current_leases();
        let mut settlements = settlements.to_vec();
        let all = settlements.len();
        match self.mistake {
            StoreMistake::AcceptsStaleEpochs => return self.inner.settle(&current, &settlements).await,
            StoreMistake::AllOrNothing if leases.iter().any(|lease| !current.contains(lease)) => {
                return Ok(0);
            }
            StoreMistake::LosesSettlements => return Ok(all),
            StoreMistake::ForgetsAttempts => {
                settlements.retain(|settlement| !matches!(settlement.verdict, Verdict::Failed { .. }));
                self.inner.settle(leases, &settlements).await?;
                return Ok(all);
            }
            StoreMistake::CountsChangedRows => {
                let pending = self.find(|row| row.status == RowStatus::Pending);
                settlements.retain(|settlement| pending.iter().any(|row| row.seq == settlement.seq));
            }
            StoreMistake::RefusesOddErrors
                if settlements.iter().any(|s| error_of(&s.verdict).contains('\0')) =>
            {
                let source = Box::from("invalid byte sequence for encoding \"UTF8\": 0x00");
                return Err(StoreError::Database {
                    context: "settle messages",
                    source,
                });
            }
            StoreMistake::NeverHalts => settlements
                .iter_mut()
                .for_each(|s| set_halt(&mut s.verdict, false)),
            StoreMistake::AlwaysHalts => settlements
                .iter_mut()
                .for_each(|s| set_halt(&mut s.verdict, true)),
            _ => {}
        }
        self.inner.settle(leases, &settlements).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let backlog = self.inner.backlog().await?;
        Ok(if self.mistake == StoreMistake::HidesParked {
            Backlog { parked: 0, ..backlog }
        } else {
            backlog
        })
    }
}

fn error_of(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Published => "",
        Verdict::Failed { error } | Verdict::Parked { error, .. } => error,
    }
}

fn set_halt(verdict: &mut Verdict, to: bool) {
    if let Verdict::Parked { halt, .. } = verdict {
        *halt = to;
    }
}

impl OutboxAdmin for WrongStore {
    async fn parked(&self, limit: NonZeroU32) -> Result<Vec<ParkedMessage>, StoreError> {
        if self.mistake == StoreMistake::ListsParkedBackwards {
            let all = self.inner.parked(NonZeroU32::MAX).await?;
            return Ok(all.into_iter().rev().take(limit.get() as usize).collect());
        }
        self.inner.parked(limit).await
    }

    async fn retry(&self, id: MessageId) -> Result<bool, StoreError> {
        match self.mistake {
            StoreMistake::RetryDoesNothing => return Ok(true),
            StoreMistake::RetryKeepsHalt => {
                let halting = self.find(|row| row.message.id == id && row.halts);
                self.memory()
                    .still_halted
                    .extend(halting.into_iter().map(|row| row.message.aggregate));
            }
            _ => {}
        }
        Ok(self.inner.retry(id).await? || self.mistake == StoreMistake::RetriesAnything)
    }

    async fn skip(&self, id: MessageId) -> Result<bool, StoreError> {
        if self.mistake == StoreMistake::SkipDoesNothing {
            return Ok(true);
        }
        Ok(self.inner.skip(id).await? || self.mistake == StoreMistake::SkipsAnything)
    }
}
