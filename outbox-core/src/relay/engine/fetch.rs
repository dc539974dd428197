//! Fetches messages while there is room.
//!
//! Invariants: fetched, unsent messages are at most one and a half batches, with the same bound in
//! bytes. When lost leases reset the messages in memory, rows of an earlier fetch are dropped.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use super::{CROWDED_PAUSE, Mode, Shared};
use crate::health::Activity;
use crate::message::Aggregate;
use crate::relay::RelayError;
use crate::relay::poller::Query;
use crate::store::{
    FetchRequest, Fetched, FetchedRow, Lease, OutboxStore, RowKey, Settlement, StoreError, WaitingRequest,
    within,
};
use crate::telemetry;

const PER_AGGREGATE: NonZeroU32 = NonZeroU32::new(256).unwrap();
/// Maximum messages of one lane (queue of an aggregate) while other aggregates may starve. Further
/// messages of the lane leave memory and wait in the store.
const LANE_MAX: usize = 512;
/// A lane above `LANE_MAX` returns messages only after this time, because each returned message
/// costs two more writes.
const CROWDED_MAX: Duration = Duration::from_secs(2);
const LANE_KEPT: usize = 128;

#[derive(Default)]
pub(super) struct Fetch {
    row_size: RowSize,
    generation: u64,
    crowded_since: Option<Instant>,
}

pub(super) struct Asked {
    query: Query,
    number: u64,
    generation: u64,
    alone: bool,
    leases: Vec<Lease>,
    limit: (NonZeroU32, usize),
    in_flight: Vec<RowKey>,
    excluding: Vec<Aggregate>,
}

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
    pub(super) fn step(&mut self, shared: &mut Shared<'_>) -> Option<Asked> {
        if !Self::may_begin(shared) {
            return None;
        }
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

    pub(super) fn forget(&mut self) {
        self.generation += 1;
    }

    /// If the messages in memory leave much of the window of unconfirmed messages unused
    /// (`starves`), the longest lane returns messages to the store. Other aggregates then have room
    /// in memory.
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

const ROWS_FIRST: u32 = 256;

/// A database sends all requested rows, so the relay derives the row limit from the payload sizes
/// of earlier fetches.
#[derive(Debug, Default)]
struct RowSize {
    /// Mean size of the last fetch, or three quarters of the previous estimate if larger.
    bytes: Option<usize>,
    /// By query: number of rows that can neither be sent nor set aside. It is added to the row
    /// limit, so these rows do not hide later rows.
    past: [u32; 2],
}

const PAST_MAX: u32 = 10_000;

impl RowSize {
    fn learn(&mut self, rows: &[FetchedRow]) {
        let sizes = rows.iter().filter_map(|row| row.message.as_ref().ok());
        let (count, bytes) = sizes.fold((0, 0_usize), |(count, bytes), message| {
            (count + 1, bytes.saturating_add(message.payload.len()))
        });
        if let Some(mean) = bytes.checked_div(count) {
            self.learn_mean(mean);
        }
    }

    fn learn_mean(&mut self, mean: usize) {
        let learned = self.bytes.unwrap_or_default();
        self.bytes = Some(mean.max(learned - learned / 4));
    }

    fn pass_over(&mut self, query: Query, rows: usize, in_vain: bool) -> bool {
        let past = &mut self.past[query as usize];
        let before = *past;
        let met = u32::try_from(rows).unwrap_or(u32::MAX);
        *past = if in_vain { met.max(before * 2) } else { met }.min(PAST_MAX);
        *past > before
    }

    fn limit(&self, query: Query, batch: NonZeroU32, bytes: usize) -> (NonZeroU32, usize) {
        let rows = match self.bytes {
            None => ROWS_FIRST,
            Some(mean) => u32::try_from(bytes / mean.max(1)).unwrap_or(u32::MAX),
        };
        let rows = NonZeroU32::new(rows).unwrap_or(NonZeroU32::MIN).min(batch);
        let past = self.past[query as usize];
        let past_bytes = self
            .bytes
            .unwrap_or_default()
            .max(1)
            .saturating_mul(past as usize);
        (rows.saturating_add(past), bytes.saturating_add(past_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: NonZeroU32 = NonZeroU32::new(4000).unwrap();
    const BYTES: usize = 32 << 20;

    fn limit_after(size: &mut RowSize, mean: usize) -> u32 {
        size.learn_mean(mean);
        size.limit(Query::Pending, BATCH, BYTES).0.get()
    }

    #[test]
    fn large_messages_are_fetched_in_small_batches() {
        let mut size = RowSize::default();
        size.learn(&[]);
        assert_eq!(
            size.limit(Query::Pending, BATCH, BYTES).0.get(),
            ROWS_FIRST,
            "nothing is known"
        );
        assert_eq!(limit_after(&mut size, 300), 4000);
        assert_eq!(limit_after(&mut size, 256 << 10), 128);
        let after_a_small_one = limit_after(&mut size, 300);
        assert!((129..200).contains(&after_a_small_one), "{after_a_small_one}");
        let fetches = (0..).take_while(|_| limit_after(&mut size, 300) < 4000);
        assert!(fetches.count() < 20);
        assert_eq!(limit_after(&mut size, 64 << 20), 1);
        assert_eq!(limit_after(&mut RowSize::default(), 0), 4000, "empty payloads");
    }

    #[test]
    fn skipped_rows_do_not_hide_later_rows() {
        let mut size = RowSize::default();
        size.learn_mean(100);
        assert!(size.pass_over(Query::Waiting, 4000, true));
        assert_eq!(
            size.limit(Query::Waiting, BATCH, BYTES),
            (NonZeroU32::new(8000).unwrap(), BYTES + 400_000)
        );
        assert_eq!(
            size.limit(Query::Pending, BATCH, BYTES),
            (BATCH, BYTES),
            "the other query"
        );
        assert!(size.pass_over(Query::Waiting, 4000, true), "too few bytes");
        assert!(size.pass_over(Query::Waiting, 9000, true));
        assert!(!size.pass_over(Query::Waiting, 20_000, true), "there is a bound");
        size.pass_over(Query::Waiting, 0, false);
        assert_eq!(size.limit(Query::Waiting, BATCH, BYTES), (BATCH, BYTES));
    }
}
