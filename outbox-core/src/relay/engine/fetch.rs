//! Fetches messages as far as there is room for them.
//!
//! Invariants: at most one and a half batches are fetched and not sent, and as much in bytes. The
//! result of a fetch that began before everything was forgotten is dropped.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use super::{CROWDED_PAUSE, Mode, Shared};
use crate::health::Activity;
use crate::message::Aggregate;
use crate::relay::RelayError;
use crate::relay::poller::Query;
use crate::relay::row_size::RowSize;
use crate::store::{
    FetchRequest, Fetched, FetchedRow, Lease, OutboxStore, RowKey, Settlement, StoreError, WaitingRequest,
    within,
};
use crate::telemetry;

/// Messages of one blocked aggregate per fetch. Evaluated at compile time.
const PER_AGGREGATE: NonZeroU32 = NonZeroU32::new(256).unwrap();
/// While other aggregates may starve, a lane with more messages than this in memory continues from
/// the store.
const LANE_MAX: usize = 512;
/// Only after this long: each message that continues from the store is written twice more, and a
/// backlog of one aggregate is often short. Other aggregates wait at most this much longer.
const CROWDED_MAX: Duration = Duration::from_secs(2);
/// This many messages of such a lane stay in memory; when there are fewer, more are fetched.
const LANE_KEPT: usize = 128;

#[derive(Default)]
pub(super) struct Fetch {
    row_size: RowSize,
    /// Raised when everything is forgotten.
    generation: u64,
    /// Since when memory has been full of messages that wait behind a few sent messages.
    crowded_since: Option<Instant>,
}

/// A fetch to run.
pub(super) struct Asked {
    query: Query,
    number: u64,
    generation: u64,
    /// Nothing was in flight when the fetch began.
    alone: bool,
    leases: Vec<Lease>,
    limit: (NonZeroU32, usize),
    in_flight: Vec<RowKey>,
    /// Aggregates with enough messages in memory, which the fetch leaves out.
    excluding: Vec<Aggregate>,
}

/// A fetch that has ended.
pub(super) struct FetchDone {
    pub(super) asked: Asked,
    pub(super) took: Duration,
    pub(super) result: Result<Fetched, StoreError>,
}

impl Asked {
    pub(super) async fn run<S: OutboxStore>(self, store: &S, bound: Duration) -> FetchDone {
        let began = Instant::now();
        let (leases, in_flight, (limit, bytes)) = (&self.leases, &self.in_flight, self.limit);
        let result = match self.query {
            Query::Pending => {
                let request = FetchRequest {
                    leases,
                    limit,
                    bytes,
                    in_flight,
                };
                within(
                    bound,
                    "pending messages could not be fetched",
                    store.fetch(request),
                )
                .await
            }
            Query::Waiting => {
                let request = WaitingRequest {
                    leases,
                    limit,
                    per_aggregate: PER_AGGREGATE,
                    bytes,
                    in_flight,
                    excluding: &self.excluding,
                };
                let fetched = store.fetch_waiting(request);
                within(bound, "waiting messages could not be fetched", fetched).await
            }
        };
        FetchDone {
            took: began.elapsed(),
            asked: self,
            result,
        }
    }
}

impl Fetch {
    /// The fetch to run now.
    pub(super) fn step(&mut self, shared: &mut Shared<'_>) -> Option<Asked> {
        if !Self::may_begin(shared) {
            return None;
        }
        // A drain does not wait between the last message and the proof that there are no more.
        let query = match shared.mode {
            Mode::Drain if shared.in_flight.is_empty() => shared.poller.not_ended(),
            _ => shared.poller.due(shared.breaker.is_refusing()),
        }?;
        let alone = shared.in_flight.is_empty();
        let (number, in_flight) = shared.in_flight.begin_fetch();
        shared.poller.begin(query);
        Some(Asked {
            query,
            number,
            generation: self.generation,
            alone,
            leases: shared.ownership.fetchable(),
            limit: self
                .row_size
                .limit(query, shared.config.batch, shared.config.buffer_bytes),
            in_flight,
            excluding: match query {
                Query::Pending => Vec::new(),
                Query::Waiting => shared.in_flight.crowded(LANE_KEPT),
            },
        })
    }

    pub(super) fn may_begin(shared: &Shared<'_>) -> bool {
        let is_leased = |now| {
            let deadlines = shared.ownership.deadlines();
            deadlines.is_some_and(|deadlines| now < deadlines.start)
        };
        shared.has_room()
            && !shared.pauses.all()
            && !shared.in_flight.is_setting_aside()
            && is_leased(Instant::now())
    }

    pub(super) fn done(&mut self, shared: &mut Shared<'_>, fetch: FetchDone) -> Result<(), RelayError> {
        let asked = fetch.asked;
        telemetry::fetch(fetch.took);
        let activity = match asked.query {
            Query::Pending => Activity::Fetching,
            Query::Waiting => Activity::FetchingWaiting,
        };
        let fetched = match fetch.result {
            Ok(fetched) => fetched,
            Err(error) => {
                let pause = shared.store_failed(activity, error)?;
                shared.poller.postpone(pause);
                return Ok(());
            }
        };
        shared.store_answered(activity);
        self.row_size.learn(&fetched.due);
        if asked.generation != self.generation {
            shared.poller.restart();
            return Ok(());
        }
        let any = !fetched.due.is_empty() || !fetched.waits.is_empty();
        let (taken, passed_over) = take(shared, asked.number, fetched.due, fetched.waits);
        let in_vain = taken == 0 && passed_over > 0;
        // A query for what is behind them is not in vain.
        let gets_further = self.row_size.pass_over(asked.query, passed_over, in_vain);
        let more = fetched.more && (!in_vain || gets_further);
        shared.poller.end(asked.query, any && !in_vain, more, asked.alone);
        if asked.query == Query::Pending && !more {
            self.crowded_since = None;
        }
        if !asked.excluding.is_empty() {
            shared.poller.block(CROWDED_PAUSE);
        }
        Ok(())
    }

    /// Drops the result of a fetch that is under way.
    pub(super) fn forget(&mut self) {
        self.generation += 1;
    }

    /// No message may be sent: all in memory wait behind sent messages. If they are of few
    /// aggregates, and `starves` says that much of the window is free, the longest lane continues
    /// from the store, to make room for others.
    pub(super) fn crowded(&mut self, shared: &mut Shared<'_>, starves: bool) {
        if !starves {
            self.crowded_since = None;
        } else if !shared.has_room()
            && self.crowded_since.get_or_insert_with(Instant::now).elapsed() >= CROWDED_MAX
            && shared.in_flight.shorten(LANE_MAX, LANE_KEPT)
        {
            shared.poller.block(CROWDED_PAUSE);
        }
    }
}

/// Takes the fetched rows of partitions that are kept. Returns the number of rows taken, and of
/// rows passed over because the store refuses the verdicts that they need.
fn take(
    shared: &mut Shared<'_>,
    number: u64,
    due: Vec<FetchedRow>,
    mut waits: Vec<Settlement>,
) -> (usize, usize) {
    waits.retain(|settlement| shared.ownership.keeps(settlement.partition));
    let mut offered = waits.len();
    let mut taken = shared.in_flight.set_aside(waits);
    for row in due {
        if shared.ownership.keeps(row.partition) {
            offered += 1;
            taken += usize::from(shared.in_flight.accept(number, row));
        }
    }
    (taken, offered - taken)
}
