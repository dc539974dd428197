//! Implements [`OutboxStore`] over the log. The store holds messages that were read from the log
//! and are not yet published or pending ("undecided").
//!
//! Invariants:
//!
//! - A fetch returns a message only if its aggregate is not blocked and has no pending messages in
//!   the table. A message leaves memory only after it is published or pending.
//! - A message published at the first attempt causes no write. If the table has no blocked
//!   aggregates and no pending messages, fetches do not query the table.
//! - The reading ends only after the relay has released all partitions, so no message is in flight.
//! - After a crash, the next reader receives the messages that are still logged. The table relay
//!   publishes the messages that are pending.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::log::source::SecondSource;
use outbox_core::log::{Logged, Look, LookRequest, MessageLog};
use outbox_core::message::PARTITIONS;
use outbox_core::store::{RowKey, WaitingRequest};
use outbox_core::{
    Aggregate, Announcement, Backlog, FetchRequest, Fetched, FetchedRow, Lease, LiveRelay, MessageId,
    OutboxStore, OwnerId, Pause, PurgeRequest, Purged, RelayHealth, Relays, Settlement, SetupProblem,
    StoreError, Verdict,
};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout_at};

use super::offer::Offer;
use super::reading::Readings;
use super::shared::{Exceptions, Shared, lock};
use super::window::{Held, QuickMap, QuickSet};

const LINGER: Duration = Duration::from_secs(1);
const AGREEING: Duration = Duration::from_millis(50);
const UNSEEN_EVERY: Duration = Duration::from_millis(20);
const CATCH_UP: Duration = Duration::from_secs(10);
pub(super) const FETCH_MAX: Duration = CATCH_UP;
/// Maximum number of messages of one aggregate that the log relay has in flight.
const PER_AGGREGATE: usize = 256;

pub(super) struct Undecided<L: MessageLog> {
    log: Arc<L>,
    shared: Arc<Shared>,
    readings: Readings<L>,
    owned: Mutex<Owned>,
    offer: Mutex<Offer>,
    source: SecondSource,
    follows: bool,
}

#[derive(Debug, Default)]
struct Owned {
    epoch: i64,
    partitions: BTreeSet<u16>,
}

impl<L: MessageLog> Undecided<L> {
    pub(super) fn new(log: Arc<L>, shared: Arc<Shared>, source: SecondSource, follows: bool) -> Self {
        Self {
            readings: Readings::new(log.clone(), shared.clone(), source.clone()),
            source,
            log,
            shared,
            owned: Mutex::default(),
            offer: Mutex::default(),
            follows,
        }
    }

    fn candidates(&self, request: &FetchRequest<'_>) -> Candidates {
        let (mut found, mut bytes) = (Candidates::default(), 0_usize);
        let mut handed_out = QuickMap::<&Aggregate, usize>::default();
        let partitions: QuickSet<u16> = request.leases.iter().map(|lease| lease.partition).collect();
        let window = self.shared.window();
        for held in window.undecided() {
            let row = &held.message.row;
            if !partitions.contains(&row.partition) {
                continue;
            }
            let before = handed_out.entry(&row.aggregate).or_default();
            *before += usize::from(row.sequenced);
            if request.in_flight.binary_search(&row.key()).is_ok() {
                continue;
            }
            if *before > PER_AGGREGATE {
                found.more = true;
                continue;
            }
            if found.messages.len() >= request.limit.get() as usize || bytes > request.bytes {
                found.more = true;
                break;
            }
            bytes = bytes.saturating_add(row.message.as_ref().map_or(0, |message| message.payload.len()));
            found.messages.push(Candidate::new(held));
        }
        found
    }

    /// Returns messages to publish, and whether all messages in memory are in flight. Returns
    /// `None` while too many messages are pending in the table.
    async fn hand_out(&self, request: &FetchRequest<'_>) -> Result<Option<(Fetched, bool)>, StoreError> {
        let _turn = self.shared.turn.lock().await;
        let candidates = self.candidates(request);
        if candidates.messages.is_empty() {
            return Ok(Some((Fetched::default(), true)));
        }
        let look = self.look(&candidates.messages).await?;
        let is_flooded = look.as_ref().is_some_and(|look| look.is_flooded);
        self.shared.set_waits_for_table(is_flooded);
        if is_flooded {
            return Ok(None);
        }
        Ok(Some((
            self.sort(candidates, request.in_flight, look.as_ref()),
            false,
        )))
    }

    async fn look(&self, candidates: &[Candidate]) -> Result<Option<Look>, StoreError> {
        let doubtful: Vec<Logged> = candidates
            .iter()
            .filter(|candidate| candidate.is_doubtful)
            .map(|candidate| candidate.logged)
            .collect();
        let is_delayed = |candidate: &Candidate| candidate.available_at.is_some();
        let Exceptions { any, adoptions } = self.shared.exceptions(|exceptions| *exceptions);
        if !any && doubtful.is_empty() && !candidates.iter().any(is_delayed) {
            return Ok(None);
        }
        let sequenced = candidates.iter().filter(|candidate| candidate.row.sequenced);
        let aggregates: HashSet<&Aggregate> = sequenced.map(|candidate| &candidate.row.aggregate).collect();
        let aggregates: Vec<Aggregate> = aggregates.into_iter().cloned().collect();
        let request = LookRequest {
            aggregates: &aggregates,
            messages: &doubtful,
        };
        let look = self.log.look(request).await?;
        self.shared
            .exceptions(|exceptions| exceptions.looked(look.any, adoptions));
        if !doubtful.is_empty() {
            let (logged, unseen) = (
                look.logged.iter().copied().collect(),
                look.unseen.iter().copied().collect(),
            );
            self.shared.window().told(&doubtful, &logged, &unseen);
            self.shared.room();
        }
        Ok(Some(look))
    }

    /// A message becomes pending only after all earlier messages of its aggregate are published or
    /// pending. Otherwise, after a crash, the log would return an earlier message after the table
    /// relay has published a later one.
    fn sort(&self, candidates: Candidates, in_flight: &[RowKey], look: Option<&Look>) -> Fetched {
        let first: HashSet<&Aggregate> = look.iter().flat_map(|look| &look.first).collect();
        let now = look.map_or_else(OffsetDateTime::now_utc, |look| look.now);
        let mut fetched = Fetched {
            more: candidates.more,
            ..Fetched::default()
        };
        let aged = |candidate: Candidate| FetchedRow {
            age: Duration::try_from(now - candidate.created_at).unwrap_or_default(),
            ..candidate.row
        };
        if look.is_none() {
            fetched.due = candidates.messages.into_iter().map(aged).collect();
            return fetched;
        }
        let window = self.shared.window();
        // Aggregates by the state of their earlier messages: `open` (in flight or fetched),
        // `waiting` (must wait), `unknown` (log or table, not known yet).
        let (mut open, mut waiting, mut unknown) = (HashSet::new(), HashSet::new(), HashSet::new());
        let held = in_flight.iter().filter_map(|key| window.get(key.id?));
        open.extend(held.map(|held| held.message.row.aggregate.clone()));
        for candidate in candidates.messages {
            let Some(held) = window.get(candidate.logged.id) else {
                continue;
            };
            let row = &candidate.row;
            if held.is_doubtful || unknown.contains(&row.aggregate) {
                if row.sequenced {
                    unknown.insert(row.aggregate.clone());
                }
                continue;
            }
            let is_delayed = candidate.available_at.is_some_and(|at| at > now);
            let is_behind =
                row.sequenced && (first.contains(&row.aggregate) || waiting.contains(&row.aggregate));
            if is_delayed || is_behind {
                if row.sequenced {
                    waiting.insert(row.aggregate.clone());
                    if open.contains(&row.aggregate) {
                        continue;
                    }
                }
                fetched.waits.push(row.with_verdict(Verdict::Waits));
            } else {
                if row.sequenced {
                    open.insert(row.aggregate.clone());
                }
                fetched.due.push(aged(candidate));
            }
        }
        fetched
    }
}

#[derive(Default)]
struct Candidates {
    messages: Vec<Candidate>,
    more: bool,
}

struct Candidate {
    logged: Logged,
    row: FetchedRow,
    created_at: OffsetDateTime,
    available_at: Option<OffsetDateTime>,
    is_doubtful: bool,
}

impl Candidate {
    fn new(held: &Held) -> Self {
        let message = &held.message;
        Self {
            logged: message.logged(),
            row: message.row.clone(),
            created_at: message.created_at,
            available_at: message.available_at,
            is_doubtful: held.is_doubtful,
        }
    }
}

impl<L: MessageLog> OutboxStore for Undecided<L> {
    async fn preflight(&self, _: bool) -> Result<Vec<SetupProblem>, StoreError> {
        self.log.preflight().await
    }

    /// The log has a single reader, so the engine has no peers. To offer the log to standby relays,
    /// `announce` reports a healthy peer: the engine then releases all partitions.
    async fn announce(
        &self,
        _: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> Result<Relays, StoreError> {
        let health = announcement.health;
        let reads = self.readings.current().is_some();
        if self.follows {
            // While another relay reads the log, the health of this relay's own reading is
            // outdated. The health is not announced, because two `unhealthy` relays would both keep
            // their leases.
            let stands_by = !reads && self.shared.status().stands_by;
            // A relay without the log cannot test its recovery, and no peer would hand the log to a
            // relay that announces `recovering`.
            let tries_nothing = !reads && health == RelayHealth::Recovering;
            let told = (!stands_by && !tries_nothing).then(|| (health, announcement.trouble.clone()));
            self.source.announce(told);
        }
        let mut relays = Relays::default();
        relays.count(health, 1);
        if self.follows && lock(&self.offer).announced(health, reads, ttl) {
            relays.count(RelayHealth::Healthy, 1);
        }
        Ok(relays)
    }

    async fn relays(&self) -> Result<Vec<LiveRelay>, StoreError> {
        Ok(Vec::new())
    }

    /// Grants all partitions to the relay that reads the log. The lease epoch is the number of the
    /// reading.
    async fn acquire(&self, _: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        if lock(&self.offer).is_away() || !self.source.agrees_within(AGREEING).await {
            return Ok(Vec::new());
        }
        let Some(epoch) = self.readings.open(ttl).await? else {
            lock(&self.offer).taken();
            return Ok(Vec::new());
        };
        let mut owned = lock(&self.owned);
        if owned.epoch != epoch {
            *owned = Owned {
                epoch,
                ..Owned::default()
            };
        }
        let free = (0..PARTITIONS).filter(|partition| !owned.partitions.contains(partition));
        let taken: Vec<u16> = free.take(usize::from(max)).collect();
        owned.partitions.extend(&taken);
        Ok(taken
            .into_iter()
            .map(|partition| Lease { partition, epoch })
            .collect())
    }

    async fn renew(&self, _: OwnerId, leases: &[Lease], _: Duration) -> Result<Vec<Lease>, StoreError> {
        let current = self.readings.current();
        let lasts = |lease: &&Lease| Some(lease.epoch) == current;
        Ok(leases.iter().filter(lasts).copied().collect())
    }

    /// Releases partitions. Partitions with messages in flight are released later.
    async fn release(&self, _: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        let is_last = {
            let mut owned = lock(&self.owned);
            let given = leases.iter().filter(|lease| lease.epoch == owned.epoch);
            let given: Vec<u16> = given.map(|lease| lease.partition).collect();
            given.iter().for_each(|partition| {
                owned.partitions.remove(partition);
            });
            !given.is_empty() && owned.partitions.is_empty() && self.readings.current() == Some(owned.epoch)
        };
        if is_last {
            self.readings.close().await;
            lock(&self.offer).closed();
        }
        Ok(())
    }

    async fn leave(&self, _: OwnerId) -> Result<(), StoreError> {
        self.readings.close().await;
        Ok(())
    }

    /// Waits for new log entries, for a bounded time. A drain waits for messages committed before
    /// the drain.
    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        let nothing_yet = || Fetched {
            more: true,
            ..Fetched::default()
        };
        let until = Instant::now() + if self.follows { LINGER } else { CATCH_UP };
        let adoptions = self.shared.exceptions(|exceptions| exceptions.adoptions);
        let mut committed = None;
        loop {
            if self.shared.exceptions(|exceptions| exceptions.adoptions) != adoptions {
                return Ok(nothing_yet());
            }
            if let Err(error) = self.readings.check() {
                return match lock(&self.owned).partitions.is_empty() {
                    true => Ok(Fetched::default()),
                    false => Err(error),
                };
            }
            let news = self.shared.news.notified();
            tokio::pin!(news);
            // The wait is registered before the window is checked, so that no log entry is missed.
            news.as_mut().enable();
            let read_to = self.shared.window().read_to();
            let Some((fetched, is_empty)) = self.hand_out(&request).await? else {
                // A drain of the log does not publish pending messages.
                if !self.follows {
                    return Err(StoreError::Database {
                        context: "the log cannot be drained",
                        source: "more than 10,000 messages are pending in the table; drain it first".into(),
                    });
                }
                sleep(LINGER).await;
                return Ok(nothing_yet());
            };
            if !fetched.due.is_empty() || !fetched.waits.is_empty() {
                // The next fetch waits for log entries. A poll would be late.
                return Ok(Fetched {
                    more: true,
                    ..fetched
                });
            }
            if !self.follows && is_empty {
                let committed = match committed {
                    Some(committed) => committed,
                    None => *committed.insert(self.log.written().await?),
                };
                if read_to >= committed {
                    return Ok(fetched);
                }
            }
            // If all messages wait for an earlier message, the fetch polls the table: a message
            // that becomes visible there causes no log entry.
            let again = match is_empty {
                true => until,
                false => until.min(Instant::now() + UNSEEN_EVERY),
            };
            if timeout_at(again, news).await.is_err() && again >= until {
                return match self.follows || !is_empty {
                    true => Ok(nothing_yet()),
                    false => Err(StoreError::Silent {
                        context: "the log did not return all committed messages",
                        waited: CATCH_UP,
                    }),
                };
            }
        }
    }

    async fn fetch_waiting(&self, _: WaitingRequest<'_>) -> Result<Fetched, StoreError> {
        Ok(Fetched::default())
    }

    /// Records published messages in memory. Messages with another verdict become pending.
    async fn settle(&self, _: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        let is_published = |settlement: &&Settlement| matches!(settlement.verdict, Verdict::Published { .. });
        let published = settlements.iter().filter(is_published);
        self.shared
            .published(published.filter_map(|settlement| settlement.id));
        let others = settlements.iter().filter(|settlement| !is_published(settlement));
        let ids: Vec<MessageId> = others.filter_map(|settlement| settlement.id).collect();
        if !ids.is_empty() {
            // A replaced reading must not make messages pending that its successor has published.
            self.readings.check()?;
            self.shared.adopt(&*self.log, &ids).await?;
        }
        Ok(settlements.len())
    }

    async fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        self.log.purge(request).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.log.pauses().await
    }

    async fn finish_pauses(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let pending = self.shared.window().len() as u64;
        Ok(Backlog {
            pending,
            pending_estimate: pending,
            ..Backlog::default()
        })
    }
}
