//! Planted mistakes of real relay designs, which test the simulation.
//!
//! Invariant: [`Wrong::None`] changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use futures_util::FutureExt as _;
use outbox_core::message::PARTITIONS;
use outbox_core::publisher::FailureClass;
use outbox_core::store::{
    Announcement, FetchRequest, Fetched, Lease, MessageStatus, OutboxStore, OwnerId, PurgeRequest, Purged,
    RelayHealth, Relays, RowKey, Settlement, SetupKind, StoreError, Verdict, WaitingRequest,
};
use outbox_testing::MemoryStore;
use tokio::time::Instant;

use super::history::Life;

/// The mistake to plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Wrong {
    /// No mistake.
    None,
    /// Relays own no partitions. Each fetch takes unlocked rows, as with `SKIP LOCKED`.
    SkipLockedRows,
    /// Rows are marked as published at the fetch, before the publish.
    MarkBeforePublish,
    /// The store accepts settlements with any lease epoch.
    NoEpochCheck,
    /// The successors of a failed message do not wait.
    PerRowBackoff,
    /// Every broker error counts as an attempt of the message.
    AttemptsBurntByOutages,
    /// Messages of an aggregate are fetched by row id.
    OrdersByRowId,
    /// The relay fetches only rows after a cursor.
    CursorInsteadOfState,
    /// Leases expire before the time that the relay received.
    LeasesRunOutEarly,
    /// Messages overtake a delayed message of their aggregate.
    OvertakesDelayed,
    /// Purges include unpublished rows.
    PurgesUnpublished,
    /// Purges include dead letters.
    PurgesDeadLetters,
    /// Relays do not report that they are unhealthy.
    HidesPoorHealth,
    /// The relay does not detect a suspension of its machine.
    SleepsUnnoticed,
    /// The store swaps the contents of two messages.
    MixesPayloads,
    /// Reconciliation assumes that the broker still stores every confirmed message.
    TrustsConfirmations,
    /// The stored log position is after messages that are not yet published or pending.
    PassesUndecided,
    /// The stored log position may be inside a transaction.
    SplitsTransactions,
    /// The log relay continues before the table has stored which messages are pending.
    AdoptsInVain,
    /// The log position is lost, and each reading begins at the end of the log.
    ForgetsItsPlace,
    /// A log relay keeps the log although it cannot publish.
    KeepsTheLog,
    /// A relay that cannot read the pauses continues without pauses.
    GoesOnUnheard,
    /// An ended pause is removed, but its messages stay held.
    HoldsForEver,
}

impl Wrong {
    pub(super) fn keeps_leases(self) -> bool {
        self != Self::SkipLockedRows
    }

    pub(super) fn is_asleep(self) -> bool {
        self == Self::SleepsUnnoticed
    }

    pub(super) fn class(self, class: FailureClass) -> FailureClass {
        match self {
            Self::AttemptsBurntByOutages => FailureClass::Unclassified,
            _ => class,
        }
    }

    pub(super) fn ttl(self, ttl: Duration) -> Duration {
        match self {
            Self::LeasesRunOutEarly => ttl / 4,
            _ => ttl,
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_possible_value();
        f.write_str(name.as_ref().map_or("", |name| name.get_name()))
    }
}

#[derive(Debug)]
pub(super) struct Backend {
    store: MemoryStore,
    wrong: Wrong,
    locked: BTreeMap<i64, (Life, Instant)>,
    waiting: BTreeMap<i64, Instant>,
    set_aside: BTreeSet<i64>,
    cursor: i64,
}

const FOR_EVER: Duration = Duration::from_secs(1 << 20);

impl Backend {
    pub(super) fn new(store: MemoryStore, wrong: Wrong) -> Self {
        if !wrong.keeps_leases() {
            let _leases = now(store.acquire(OwnerId::fresh(), FOR_EVER, PARTITIONS));
        }
        Self {
            store,
            wrong,
            locked: BTreeMap::new(),
            waiting: BTreeMap::new(),
            set_aside: BTreeSet::new(),
            cursor: 0,
        }
    }

    pub(super) fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        mut announcement: Announcement,
    ) -> Result<Relays, StoreError> {
        if self.wrong == Wrong::HidesPoorHealth {
            announcement.health = RelayHealth::Unknown;
        }
        let relays = now(self.store.announce(owner, ttl, &announcement))?;
        let alone = Relays {
            healthy: 1,
            ..Relays::default()
        };
        Ok(if self.wrong.keeps_leases() { relays } else { alone })
    }

    pub(super) fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        if self.wrong.keeps_leases() {
            now(self.store.acquire(owner, self.wrong.ttl(ttl), max))
        } else {
            Ok(self.store.current_leases())
        }
    }

    pub(super) fn renew(
        &self,
        owner: OwnerId,
        leases: &[Lease],
        ttl: Duration,
    ) -> Result<Vec<Lease>, StoreError> {
        if self.wrong.keeps_leases() {
            now(self.store.renew(owner, leases, self.wrong.ttl(ttl)))
        } else {
            Ok(leases.to_vec())
        }
    }

    pub(super) fn fetch(&mut self, life: Life, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        let passed: Vec<RowKey> = match self.wrong {
            Wrong::CursorInsteadOfState => {
                let rows = self.store.rows().into_iter().map(|row| RowKey {
                    row_id: row.row_id,
                    id: Some(row.message.id),
                });
                let passed = rows.filter(|key| key.row_id <= self.cursor);
                passed.chain(request.in_flight.iter().copied()).collect()
            }
            _ => request.in_flight.to_vec(),
        };
        let request = FetchRequest {
            in_flight: &passed,
            ..request
        };
        let mut fetched = now(self.store.fetch(request))?;
        let found = fetched.due.iter().map(|row| row.row_id);
        self.cursor = found.fold(self.cursor, i64::max);
        self.spoil(life, &mut fetched);
        Ok(fetched)
    }

    pub(super) fn fetch_waiting(
        &mut self,
        life: Life,
        request: WaitingRequest<'_>,
    ) -> Result<Fetched, StoreError> {
        let mut fetched = now(self.store.fetch_waiting(request))?;
        self.spoil(life, &mut fetched);
        Ok(fetched)
    }

    fn spoil(&mut self, life: Life, fetched: &mut Fetched) {
        let time = Instant::now();
        match self.wrong {
            Wrong::SkipLockedRows => {
                let is_free = |locked: &BTreeMap<_, (Life, Instant)>, row_id| {
                    locked
                        .get(&row_id)
                        .is_none_or(|(owner, until): &(Life, Instant)| *owner == life || *until < time)
                };
                fetched.due.retain(|row| is_free(&self.locked, row.row_id));
                for row in &fetched.due {
                    self.locked
                        .insert(row.row_id, (life, time + Duration::from_secs(1)));
                }
            }
            Wrong::MarkBeforePublish => {
                let published = Verdict::Published { keep: true };
                let marks = fetched.due.iter().map(|row| row.with_verdict(published.clone()));
                let marks: Vec<_> = marks.collect();
                let _marked = now(self.store.settle(&self.store.current_leases(), &marks));
            }
            Wrong::PerRowBackoff => {
                fetched
                    .due
                    .retain(|row| self.waiting.get(&row.row_id).is_none_or(|until| *until <= time));
                self.set_aside
                    .extend(fetched.waits.iter().map(|wait| wait.row_id));
            }
            Wrong::MixesPayloads => {
                let mut messages = fetched.due.iter_mut().filter_map(|row| row.message.as_mut().ok());
                if let (Some(first), Some(second)) = (messages.next(), messages.next()) {
                    let (first, second) = (Arc::make_mut(first), Arc::make_mut(second));
                    std::mem::swap(&mut first.payload, &mut second.payload);
                }
            }
            Wrong::OrdersByRowId => fetched.due.sort_by_key(|row| row.row_id),
            Wrong::OvertakesDelayed => {
                let waits: BTreeSet<i64> = fetched.waits.iter().map(|wait| wait.row_id).collect();
                let now = self.store.now();
                let rows = self.store.rows().into_iter();
                let overtaking = rows
                    .filter(|row| waits.contains(&row.row_id) && row.status == MessageStatus::Pending)
                    .filter(|row| row.available_at.is_none_or(|at| at <= now))
                    .map(|row| row.fetched(now));
                let overtaking: Vec<_> = overtaking.collect();
                fetched
                    .waits
                    .retain(|wait| !overtaking.iter().any(|row| row.row_id == wait.row_id));
                fetched.due.extend(overtaking);
            }
            _ => {}
        }
    }

    pub(super) fn finish_pauses(&self) -> Result<bool, StoreError> {
        match self.wrong {
            Wrong::HoldsForEver => {
                self.store.drop_ended_pauses();
                Ok(false)
            }
            _ => now(self.store.finish_pauses()),
        }
    }

    pub(super) fn settle(
        &mut self,
        leases: &[Lease],
        settlements: &[Settlement],
    ) -> Result<usize, StoreError> {
        match self.wrong {
            Wrong::NoEpochCheck | Wrong::SkipLockedRows => {
                now(self.store.settle(&self.store.current_leases(), settlements))
            }
            Wrong::PerRowBackoff => {
                let mut kept = Vec::new();
                for settlement in settlements {
                    match &settlement.verdict {
                        Verdict::Blocked { delay, .. } => {
                            self.waiting.insert(settlement.row_id, Instant::now() + *delay);
                        }
                        Verdict::Waits if !self.set_aside.remove(&settlement.row_id) => {}
                        _ => kept.push(settlement.clone()),
                    }
                }
                let accepted = now(self.store.settle(leases, &kept))?;
                Ok(accepted + settlements.len() - kept.len())
            }
            _ => now(self.store.settle(leases, settlements)),
        }
    }
}

impl Backend {
    pub(super) fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        let is_wrong = |status| match self.wrong {
            Wrong::PurgesUnpublished => matches!(status, MessageStatus::Pending | MessageStatus::Waiting),
            Wrong::PurgesDeadLetters => status == MessageStatus::Dead,
            _ => false,
        };
        let bound = request.older_than.map(|older_than| self.store.now() - older_than);
        let is_old = |created_at| bound.is_some_and(|bound| created_at < bound);
        let rows = self.store.rows().into_iter();
        for row in rows.filter(|row| is_wrong(row.status) && is_old(row.message.created_at)) {
            self.store.discard(row.row_id);
        }
        now(self.store.purge(request))
    }
}

pub(super) fn now<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let waited = || StoreError::setup(SetupKind::Setting, "the store in memory waited", "");
    call.now_or_never().unwrap_or_else(|| Err(waited()))
}
