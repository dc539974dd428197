//! The state of the in-memory outbox.
//!
//! Invariants: messages of an aggregate are published in sequence. The index agrees with the rows,
//! because rows change only through [`State::change`].

mod admin;
mod audit;
mod fetch;
mod forget;
mod index;
mod leases;
mod logged;
mod pauses;
mod reader;
mod settle;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use self::audit::WrittenDown;
use self::index::Index;
use self::leases::Leases;
pub(super) use self::logged::{Log, LoggedCommit};
use outbox_core::message::{Aggregate, Limits, MessageId, NewMessage};
use outbox_core::store::OperationId;

use self::pauses::PauseRow;
use super::StoredRow as Row;
use super::transaction::DuplicateKey;

#[derive(Debug)]
pub(super) struct State {
    pub(super) limits: Limits,
    pub(super) faults: Faults,
    pub(super) rows: BTreeMap<i64, Row>,
    pub(super) leases: Leases,
    index: Index,
    ids: BTreeMap<MessageId, i64>,
    dedup_keys: HashMap<String, OffsetDateTime>,
    heads: HashMap<Aggregate, Head>,
    pauses: BTreeMap<Option<String>, PauseRow>,
    last_row_id: i64,
    set_back: Option<i64>,
    operations: BTreeMap<OperationId, WrittenDown>,
    pub(super) log: Log,
    started: (Instant, OffsetDateTime),
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) fail_next: usize,
    pub(super) lose_answers: usize,
    pub(super) down: bool,
    pub(super) refused: HashSet<MessageId>,
    pub(super) calls: u64,
}

#[derive(Debug, Default)]
struct Head {
    sequence: u64,
    row_id: i64,
    recorded_at: Option<OffsetDateTime>,
}

impl State {
    pub(super) fn new(now: OffsetDateTime) -> Self {
        Self {
            limits: Limits::default(),
            faults: Faults::default(),
            rows: BTreeMap::new(),
            leases: Leases::default(),
            index: Index::default(),
            ids: BTreeMap::new(),
            dedup_keys: HashMap::new(),
            heads: HashMap::new(),
            pauses: BTreeMap::new(),
            last_row_id: 0,
            set_back: None,
            operations: BTreeMap::new(),
            log: Log::default(),
            started: (Instant::now(), now),
        }
    }

    pub(super) fn now(&self) -> OffsetDateTime {
        let (instant, time) = self.started;
        time + Duration::from_micros(u64::try_from(instant.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn next_row_id(&mut self) -> i64 {
        if let Some(row_id) = &mut self.set_back {
            *row_id -= 1;
            return *row_id;
        }
        self.last_row_id += 1;
        self.last_row_id
    }

    pub(super) fn commit(&mut self, messages: Vec<(i64, NewMessage)>) -> Result<(), DuplicateKey> {
        let mut keys = HashSet::new();
        for key in messages.iter().filter_map(|(_, message)| message.dedup_key()) {
            if self.dedup_keys.contains_key(key) || !keys.insert(key.to_owned()) {
                return Err(DuplicateKey { key: key.to_owned() });
            }
        }
        let now = self.now();
        self.dedup_keys.extend(keys.into_iter().map(|key| (key, now)));
        let recorded: Vec<i64> = messages
            .into_iter()
            .map(|(row_id, message)| self.record(row_id, message, now))
            .collect();
        self.write_log(&recorded);
        Ok(())
    }

    fn record(&mut self, row_id: i64, message: NewMessage, now: OffsetDateTime) -> i64 {
        let fresh = self.last_row_id + 1;
        let head = self.heads.entry(message.aggregate().clone()).or_default();
        // In a database, the second writer of the aggregate waits for the first and gets a higher
        // row id.
        let row_id = match row_id > head.row_id || self.set_back.is_some() {
            true => row_id,
            false => fresh,
        };
        head.row_id = row_id;
        head.recorded_at = Some(now);
        let sequence = message.is_sequenced().then(|| {
            head.sequence += 1;
            head.sequence
        });
        let (dedup_key, available_at) = (message.dedup_key().map(str::to_owned), message.delayed_until());
        let message = message.into_message(sequence, now);
        self.insert(Row {
            dedup_key,
            available_at,
            status: self.log.status(),
            ..Row::pending(row_id, message)
        });
        row_id
    }

    fn insert(&mut self, row: Row) {
        self.last_row_id = self.last_row_id.max(row.row_id);
        self.ids.insert(row.message.id, row.row_id);
        self.index.insert(&row);
        self.rows.insert(row.row_id, row);
    }

    fn change(&mut self, row_id: i64, change: impl FnOnce(&mut Row)) {
        let Some(row) = self.rows.get_mut(&row_id) else {
            return;
        };
        self.index.remove(row);
        change(row);
        self.index.insert(row);
        self.index.end_block(&row.message.aggregate);
    }

    pub(super) fn delete(&mut self, row_id: i64) {
        let Some(row) = self.rows.remove(&row_id) else {
            return;
        };
        self.index.remove(&row);
        self.index.end_block(&row.message.aggregate);
        self.ids.remove(&row.message.id);
    }

    pub(super) fn purge_keys(&mut self, older_than: Duration) {
        let now = self.now();
        self.dedup_keys
            .retain(|_, recorded| Duration::try_from(now - *recorded).unwrap_or_default() <= older_than);
    }

    pub(super) fn set_back_row_ids(&mut self) {
        let lowest = self.rows.keys().next().copied().unwrap_or_default().min(0);
        self.set_back.get_or_insert(lowest);
    }

    pub(super) fn use_up_number(&mut self, aggregate: &Aggregate) {
        self.heads.entry(aggregate.clone()).or_default().sequence += 1;
    }

    pub(super) fn forget_dedup_keys(&mut self) {
        self.dedup_keys.clear();
    }

    pub(super) fn corrupt(&mut self, id: MessageId) -> bool {
        self.corrupt_logged(id);
        let row = self.ids.get(&id).and_then(|row_id| self.rows.get_mut(row_id));
        row.map(|row| row.is_unreadable = true).is_some()
    }
}
