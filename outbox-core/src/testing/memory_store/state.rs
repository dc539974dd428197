//! What the in-memory outbox holds, and the rules over it.
//!
//! Invariants: within an aggregate, row keys rise with sequences, so that key order is the order to publish in; `pending` and
//! `parked` name exactly the rows of that status; `halted` counts exactly the parked rows that halt.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::transaction::DuplicateKey;
use super::{RowStatus, StoredRow};
use crate::message::{Aggregate, Limits, Message, MessageId, NewMessage, PARTITIONS};
use crate::store::{
    Backlog, FetchRequest, FetchedRow, Lease, OwnerId, ParkedMessage, Settlement, Verdict, storable_error,
};

#[derive(Debug)]
pub(super) struct State {
    pub(super) limits: Limits,
    pub(super) faults: Faults,
    pub(super) rows: BTreeMap<i64, Row>,
    pending: BTreeSet<i64>,
    parked: BTreeSet<i64>,
    ids: HashMap<MessageId, i64>,
    dedup_keys: HashSet<String>,
    heads: HashMap<Aggregate, Head>,
    /// Parked rows that halt, per aggregate.
    halted: HashMap<Aggregate, usize>,
    leases: Vec<LeaseRow>,
    last_seq: i64,
    started: (Instant, OffsetDateTime),
}

/// Faults that a test asked for.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) fail_next: usize,
    pub(super) lose_answers: usize,
    pub(super) down: bool,
}

#[derive(Debug)]
pub(super) struct Row {
    seq: i64,
    partition: u16,
    pub(super) message: Message,
    status: RowStatus,
    attempts: u32,
    last_error: Option<String>,
    halts: bool,
    unreadable: bool,
    dedup_key: Option<String>,
    available_at: Option<OffsetDateTime>,
}

/// The head row of an aggregate.
#[derive(Debug, Default)]
struct Head {
    sequence: u64,
    seq: i64,
}

#[derive(Debug, Clone, Copy)]
struct LeaseRow {
    epoch: i64,
    held: Option<(OwnerId, Instant)>,
}

impl LeaseRow {
    fn is_live(&self) -> bool {
        self.held
            .is_some_and(|(_, expires_at)| Instant::now() < expires_at)
    }
}

impl State {
    pub(super) fn new(now: OffsetDateTime) -> Self {
        Self {
            limits: Limits::default(),
            faults: Faults::default(),
            rows: BTreeMap::new(),
            pending: BTreeSet::new(),
            parked: BTreeSet::new(),
            ids: HashMap::new(),
            dedup_keys: HashSet::new(),
            heads: HashMap::new(),
            halted: HashMap::new(),
            leases: vec![LeaseRow { epoch: 0, held: None }; usize::from(PARTITIONS)],
            last_seq: 0,
            started: (Instant::now(), now),
        }
    }

    pub(super) fn now(&self) -> OffsetDateTime {
        let (instant, time) = self.started;
        // Databases keep whole microseconds.
        time + Duration::from_micros(u64::try_from(instant.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn next_seq(&mut self) -> i64 {
        self.last_seq += 1;
        self.last_seq
    }

    pub(super) fn commit(&mut self, messages: Vec<(i64, NewMessage)>) -> Result<(), DuplicateKey> {
        let mut keys = HashSet::new();
        for key in messages.iter().filter_map(|(_, message)| message.dedup_key()) {
            if self.dedup_keys.contains(key) || !keys.insert(key.to_owned()) {
                return Err(DuplicateKey { key: key.to_owned() });
            }
        }
        self.dedup_keys.extend(keys);
        let now = self.now();
        for (seq, message) in messages {
            self.insert(seq, message, now);
        }
        Ok(())
    }

    fn insert(&mut self, seq: i64, message: NewMessage, now: OffsetDateTime) {
        let fresh = self.last_seq + 1;
        let head = self.heads.entry(message.aggregate().clone()).or_default();
        // A database would have made this writer wait for the other one, and its row would have come later.
        let seq = if seq > head.seq { seq } else { fresh };
        self.last_seq = self.last_seq.max(seq);
        head.seq = seq;
        let sequence = message.is_sequenced().then(|| {
            head.sequence += 1;
            head.sequence
        });
        let (dedup_key, available_at) = (message.dedup_key().map(str::to_owned), message.delayed_until());
        let row = Row {
            seq,
            partition: message.aggregate().partition(),
            message: message.into_message(sequence, now),
            status: RowStatus::Pending,
            attempts: 0,
            last_error: None,
            halts: false,
            unreadable: false,
            dedup_key,
            available_at,
        };
        self.ids.insert(row.message.id, seq);
        self.pending.insert(seq);
        self.rows.insert(seq, row);
    }

    pub(super) fn acquire(&mut self, owner: OwnerId, ttl: Duration, max: u16) -> Vec<Lease> {
        let expires_at = Instant::now() + ttl;
        (0_u16..)
            .zip(&mut self.leases)
            .filter(|(_, row)| !row.is_live())
            .take(usize::from(max))
            .map(|(partition, row)| {
                row.epoch += 1;
                row.held = Some((owner, expires_at));
                Lease {
                    partition,
                    epoch: row.epoch,
                }
            })
            .collect()
    }

    pub(super) fn renew(&mut self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Vec<Lease> {
        let held: Vec<Lease> = leases
            .iter()
            .copied()
            .filter(|lease| self.holds(owner, lease))
            .collect();
        for lease in &held {
            self.leases[usize::from(lease.partition)].held = Some((owner, Instant::now() + ttl));
        }
        held
    }

    pub(super) fn release(&mut self, owner: OwnerId, leases: &[Lease]) {
        for lease in leases {
            if self.holds(owner, lease) {
                self.leases[usize::from(lease.partition)].held = None;
            }
        }
    }

    fn holds(&self, owner: OwnerId, lease: &Lease) -> bool {
        self.leases.get(usize::from(lease.partition)).is_some_and(|row| {
            row.epoch == lease.epoch && row.is_live() && row.held.is_some_and(|(o, _)| o == owner)
        })
    }

    pub(super) fn expire_leases(&mut self) {
        let now = Instant::now();
        for (_, expires_at) in self.leases.iter_mut().filter_map(|row| row.held.as_mut()) {
            *expires_at = now;
        }
    }

    pub(super) fn current_leases(&self) -> Vec<Lease> {
        (0_u16..)
            .zip(&self.leases)
            .map(|(partition, row)| Lease {
                partition,
                epoch: row.epoch,
            })
            .collect()
    }

    pub(super) fn use_up_number(&mut self, aggregate: &Aggregate) {
        self.heads.entry(aggregate.clone()).or_default().sequence += 1;
    }

    pub(super) fn forget_dedup_keys(&mut self) {
        self.dedup_keys.clear();
    }

    pub(super) fn fetch(&self, request: FetchRequest<'_>) -> Vec<FetchedRow> {
        let now = self.now();
        let mut leased = [false; PARTITIONS as usize];
        for lease in request.leases {
            leased[usize::from(lease.partition)] = true;
        }
        let excluded: HashSet<&Aggregate> = request.excluding.iter().collect();
        // Aggregates whose delayed message had to be left behind; nothing of them may overtake it.
        let mut waiting: HashSet<&Aggregate> = HashSet::new();
        self.pending
            .iter()
            .filter_map(|seq| self.rows.get(seq))
            .filter(|row| leased[usize::from(row.partition)])
            .filter(|row| {
                let aggregate = &row.message.aggregate;
                if self.halted.contains_key(aggregate) || excluded.contains(aggregate) {
                    return false;
                }
                let sequenced = row.message.sequence.is_some();
                if row.available_at.is_some_and(|at| at > now) {
                    if sequenced {
                        waiting.insert(aggregate);
                    }
                    return false;
                }
                // What has no order neither waits nor is waited for.
                !sequenced || !waiting.contains(aggregate)
            })
            .take(request.limit.get() as usize)
            .map(Row::fetched)
            .collect()
    }

    pub(super) fn settle(&mut self, leases: &[Lease], settlements: &[Settlement]) -> usize {
        let is_held = |partition: u16| {
            let row = self.leases.get(usize::from(partition));
            leases.iter().any(|lease| {
                lease.partition == partition
                    && row.is_some_and(|row| row.epoch == lease.epoch && row.is_live())
            })
        };
        let accepted: Vec<_> = settlements
            .iter()
            .filter(|settlement| is_held(settlement.partition))
            .collect();
        for settlement in &accepted {
            self.settle_one(settlement);
        }
        accepted.len()
    }

    /// Records a verdict. On a row that is no longer pending it does nothing: an earlier call has settled it.
    fn settle_one(&mut self, settlement: &Settlement) {
        let Some(row) = self.rows.get_mut(&settlement.seq) else {
            return;
        };
        if row.status != RowStatus::Pending || row.partition != settlement.partition {
            return;
        }
        match &settlement.verdict {
            Verdict::Published => row.status = RowStatus::Published,
            Verdict::Failed { error } => {
                row.attempts += 1;
                row.last_error = Some(storable_error(error));
                return;
            }
            Verdict::Parked { error, halt } => {
                row.status = RowStatus::Parked;
                self.parked.insert(row.seq);
                row.attempts += 1;
                row.last_error = Some(storable_error(error));
                row.halts = *halt;
                if *halt {
                    *self.halted.entry(row.message.aggregate.clone()).or_default() += 1;
                }
            }
        }
        self.pending.remove(&settlement.seq);
    }

    pub(super) fn backlog(&self) -> Backlog {
        Backlog {
            pending: self.pending.len() as u64,
            parked: self.parked.len() as u64,
            halted_aggregates: self.halted.len() as u64,
        }
    }

    pub(super) fn parked(&self, limit: NonZeroU32) -> Vec<ParkedMessage> {
        self.parked
            .iter()
            .take(limit.get() as usize)
            .filter_map(|seq| self.rows.get(seq))
            .map(Row::parked)
            .collect()
    }

    pub(super) fn retry(&mut self, id: MessageId) -> bool {
        let Some(row) = find_parked(&self.ids, &mut self.rows, id) else {
            return false;
        };
        row.status = RowStatus::Pending;
        row.attempts = 0;
        self.parked.remove(&row.seq);
        self.pending.insert(row.seq);
        unhalt(&mut self.halted, row);
        true
    }

    pub(super) fn skip(&mut self, id: MessageId) -> bool {
        let Some(row) = find_parked(&self.ids, &mut self.rows, id) else {
            return false;
        };
        unhalt(&mut self.halted, row);
        true
    }

    pub(super) fn corrupt(&mut self, id: MessageId) -> bool {
        let row = self.ids.get(&id).and_then(|seq| self.rows.get_mut(seq));
        row.map(|row| row.unreadable = true).is_some()
    }
}

fn find_parked<'a>(
    ids: &HashMap<MessageId, i64>,
    rows: &'a mut BTreeMap<i64, Row>,
    id: MessageId,
) -> Option<&'a mut Row> {
    ids.get(&id)
        .and_then(|seq| rows.get_mut(seq))
        .filter(|row| row.status == RowStatus::Parked)
}

fn unhalt(halted: &mut HashMap<Aggregate, usize>, row: &mut Row) {
    if !std::mem::take(&mut row.halts) {
        return;
    }
    if let Some(count) = halted.get_mut(&row.message.aggregate) {
        *count -= 1;
        if *count == 0 {
            halted.remove(&row.message.aggregate);
        }
    }
}

impl Row {
    pub(super) fn fetched(&self) -> FetchedRow {
        let message = if self.unreadable {
            Err("headers are not JSON: injected fault".to_owned())
        } else {
            Ok(self.message.clone())
        };
        FetchedRow {
            seq: self.seq,
            partition: self.partition,
            aggregate: self.message.aggregate.clone(),
            attempts: self.attempts,
            message,
        }
    }

    fn parked(&self) -> ParkedMessage {
        ParkedMessage {
            id: self.message.id,
            aggregate: self.message.aggregate.clone(),
            sequence: self.message.sequence,
            event_type: self.message.event_type.clone(),
            attempts: self.attempts,
            error: self.last_error.clone().unwrap_or_default(),
            halts: self.halts,
        }
    }
}

impl From<&Row> for StoredRow {
    fn from(row: &Row) -> Self {
        Self {
            seq: row.seq,
            message: row.message.clone(),
            status: row.status,
            attempts: row.attempts,
            last_error: row.last_error.clone(),
            halts: row.halts,
            dedup_key: row.dedup_key.clone(),
            available_at: row.available_at,
        }
    }
}
