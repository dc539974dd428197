//! Fetches of pending and waiting messages. Fetching changes nothing.

use std::collections::{HashMap, HashSet};

use outbox_core::message::{Aggregate, PARTITIONS};
use outbox_core::store::{FetchRequest, Fetched, Lease, Verdict, WaitingRequest};
use time::OffsetDateTime;

use super::index::{Block, Place, in_order, precedes};
use super::{Row, State};

struct Answer {
    fetched: Fetched,
    rows_left: usize,
    bytes_left: usize,
    now: OffsetDateTime,
}

impl Answer {
    fn new(limit: u32, bytes: usize, now: OffsetDateTime) -> Self {
        Self {
            fetched: Fetched::default(),
            rows_left: limit as usize,
            bytes_left: bytes,
            now,
        }
    }

    fn is_full(&self) -> bool {
        self.fetched.more
    }

    fn due(&mut self, row: &Row) {
        self.fetched.due.push(row.fetched(self.now));
        let bytes = row.message.payload.len();
        let fits = bytes <= self.bytes_left;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.count(fits);
    }

    fn waits(&mut self, row: &Row) {
        self.fetched
            .waits
            .push(row.fetched(self.now).with_verdict(Verdict::Waits));
        self.count(true);
    }

    fn count(&mut self, fits: bool) {
        self.rows_left -= 1;
        self.fetched.more = !fits || self.rows_left == 0;
    }
}

enum Candidate<'a> {
    Aggregate(&'a Aggregate, &'a Block),
    Alone(&'a Row),
}

impl State {
    pub(in super::super) fn fetch(&self, request: FetchRequest<'_>) -> Fetched {
        let now = self.now();
        let leased = leased(request.leases);
        let in_flight: HashSet<i64> = request.in_flight.iter().map(|key| key.row_id).collect();
        let mut delayed: HashSet<&Aggregate> = HashSet::new();
        let mut answer = Answer::new(request.limit.get(), request.bytes, now);
        let pending = self
            .index
            .pending
            .iter()
            .filter(|row_id| !in_flight.contains(row_id));
        // Rows found per aggregate. The n-th row found gets the n-th message of the aggregate,
        // because row ids may not have the order of sequences.
        let mut met: HashMap<&Aggregate, usize> = HashMap::new();
        for row in pending.filter_map(|row_id| self.rows.get(row_id)) {
            if answer.is_full() {
                break;
            }
            let mut row = row;
            if row.is_sequenced() {
                let met = met.entry(&row.message.aggregate).or_default();
                let mut pending = self.index.pending_of(&row.message.aggregate);
                let nth = pending
                    .by_ref()
                    .filter(|(_, row_id)| !in_flight.contains(row_id))
                    .nth(*met);
                *met += 1;
                row = nth.and_then(|(_, row_id)| self.rows.get(&row_id)).unwrap_or(row);
            }
            if !leased[usize::from(row.aggregate().partition())] {
                continue;
            }
            let aggregate = &row.message.aggregate;
            let is_blocked = row.is_sequenced()
                && (self.index.blocks.contains_key(aggregate) || delayed.contains(aggregate));
            if is_blocked || row.delayed_at(now).is_some() {
                if row.is_sequenced() {
                    delayed.insert(aggregate);
                }
                answer.waits(row);
            } else {
                answer.due(row);
            }
        }
        answer.fetched
    }

    pub(in super::super) fn fetch_waiting(&self, request: WaitingRequest<'_>) -> Fetched {
        let now = self.now();
        let in_flight: HashSet<i64> = request.in_flight.iter().map(|key| key.row_id).collect();
        let mut answer = Answer::new(request.limit.get(), request.bytes, now);
        for candidate in self.due_candidates(&request, now) {
            match candidate {
                _ if answer.is_full() => break,
                Candidate::Alone(row) if in_flight.contains(&row.row_id) => {}
                Candidate::Alone(row) => answer.due(row),
                Candidate::Aggregate(aggregate, block) => {
                    let per_aggregate = request.per_aggregate.get() as usize;
                    self.fetch_blocked((aggregate, block), per_aggregate, &in_flight, &mut answer);
                }
            }
        }
        answer.fetched
    }

    fn due_candidates(&self, request: &WaitingRequest<'_>, now: OffsetDateTime) -> Vec<Candidate<'_>> {
        let leased = leased(request.leases);
        let excluded: HashSet<&Aggregate> = request.excluding.iter().collect();
        let is_wanted = |aggregate: &Aggregate| {
            leased[usize::from(aggregate.partition())] && !excluded.contains(aggregate)
        };
        let blocked = self.index.blocks.iter();
        let blocked = blocked.filter(|(aggregate, block)| block.is_due(now) && is_wanted(aggregate));
        let blocked = blocked.filter_map(|(aggregate, block)| {
            let (_, first) = block.first()?;
            Some((block.until, first, Candidate::Aggregate(aggregate, block)))
        });
        let alone = self.index.alone.iter().take_while(|(until, _)| *until <= now);
        let alone = alone
            .filter_map(|(until, row_id)| Some((*until, *row_id, Candidate::Alone(self.rows.get(row_id)?))))
            .filter(|(_, _, candidate)| {
                matches!(candidate, Candidate::Alone(row) if is_wanted(&row.message.aggregate))
            });
        let mut candidates: Vec<_> = blocked.chain(alone).collect();
        candidates.sort_by_key(|(until, row_id, _)| (*until, *row_id));
        candidates
            .into_iter()
            .map(|(_, _, candidate)| candidate)
            .collect()
    }

    fn fetch_blocked(
        &self,
        (aggregate, block): (&Aggregate, &Block),
        per_aggregate: usize,
        in_flight: &HashSet<i64>,
        answer: &mut Answer,
    ) {
        let is_pending = |(_, row_id): &(Place, i64)| !in_flight.contains(row_id);
        let is_copy = |(place, _): &(Place, i64)| matches!(place, Place::Copy(_));
        let pending = || self.index.pending_of(aggregate).filter(is_pending);
        let barriers = [pending().find(is_copy), pending().find(|row| !is_copy(row))];
        let mut returned = 0;
        let mut is_first = true;
        for row in in_order(&block.waiting).filter_map(|(_, row_id)| self.rows.get(&row_id)) {
            let this = (row.place(), row.row_id);
            let is_stopped = || {
                barriers
                    .into_iter()
                    .flatten()
                    .any(|pending| precedes(pending, this))
            };
            if answer.is_full() || returned == per_aggregate || is_stopped() {
                return;
            }
            if in_flight.contains(&row.row_id) {
                is_first = false;
                continue;
            }
            if row.delayed_at(answer.now).is_some() {
                if is_first {
                    answer.waits(row);
                }
                return;
            }
            answer.due(row);
            is_first = false;
            returned += 1;
        }
    }
}

fn leased(leases: &[Lease]) -> [bool; PARTITIONS as usize] {
    let mut leased = [false; PARTITIONS as usize];
    for lease in leases {
        leased[usize::from(lease.partition)] = true;
    }
    leased
}
