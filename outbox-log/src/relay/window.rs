//! The messages that were read from the log and are not yet published or pending ("undecided"), and
//! the position that may be stored.
//!
//! Invariant: [`Window::decided`] is before the first transaction with an unpublished message, and
//! before a transaction whose end was not read. No clock, no I/O.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

use foldhash::fast::RandomState;
use outbox_core::log::{Logged, LoggedMessage, Position};
use outbox_core::{Aggregate, MessageId};

/// A map without protection against attackers: the service chooses the keys.
pub(super) type QuickMap<K, V> = HashMap<K, V, RandomState>;
pub(super) type QuickSet<T> = HashSet<T, RandomState>;

#[derive(Debug, Default)]
pub(super) struct Window {
    /// Messages in log order. `None`: a published or pending message after an undecided message.
    messages: VecDeque<Option<Box<Held>>>,
    first_message: u64,
    numbers: QuickMap<MessageId, u64>,
    bytes: usize,
    /// Transactions after the position `decided`, in log order. The end of the last transaction may
    /// be unread.
    transactions: VecDeque<Transaction>,
    first_transaction: u64,
    read_to: Position,
    decided: Position,
    /// End of the last transaction with messages before `decided`.
    decided_messages: Position,
    /// Messages before this position may be pending, because of an earlier reading.
    doubted_to: Position,
    /// Messages published since the last checkpoint, and between the last two checkpoints: after an
    /// interruption, the log returns them again. The list has message ids, because row ids may be
    /// reused after a database failover.
    published: [Vec<MessageId>; 2],
    known: Known,
}

/// Messages that earlier readings published. An id is removed when this reading has read its
/// message again.
#[derive(Debug, Default)]
struct Known {
    ids: QuickSet<MessageId>,
    /// End of the last whole transaction of earlier readings.
    to: Position,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) message: LoggedMessage,
    transaction: u64,
    /// Whether the message may be pending in the table.
    pub(super) is_doubtful: bool,
}

#[derive(Debug, Default)]
struct Transaction {
    end: Option<Position>,
    undecided: usize,
    has_messages: bool,
}

impl Window {
    /// Begins a reading after the stored position. Messages before `adopted_to` may be pending in
    /// the table.
    pub(super) fn begin(&mut self, adopted_to: Position) {
        let mut known = mem::take(&mut self.known);
        known.ids.extend(self.published.iter().flatten());
        known.to = known.to.max(self.read_to);
        *self = Self {
            doubted_to: adopted_to,
            known,
            ..Self::default()
        };
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn read_to(&self) -> Position {
        self.read_to
    }

    pub(super) fn decided(&self) -> Position {
        self.decided
    }

    pub(super) fn push(&mut self, message: LoggedMessage) {
        if self.transactions.back().is_none_or(|last| last.end.is_some()) {
            self.transactions.push_back(Transaction::default());
        }
        if let Some(last) = self.transactions.back_mut() {
            last.has_messages = true;
        }
        // If a second row has the same message id, only the first row is published.
        if self.numbers.contains_key(&message.id) {
            return;
        }
        if self.known.ids.contains(&message.id) {
            // If this reading is interrupted before the position is stored, the next reading needs
            // the id.
            self.published[0].push(message.id);
            return;
        }
        let transaction = self.first_transaction + self.transactions.len() as u64 - 1;
        if let Some(last) = self.transactions.back_mut() {
            last.undecided += 1;
        }
        self.bytes = self.bytes.saturating_add(message.payload());
        let number = self.first_message + self.messages.len() as u64;
        self.numbers.insert(message.id, number);
        let held = Held {
            is_doubtful: self.read_to < self.doubted_to,
            message,
            transaction,
        };
        self.messages.push_back(Some(Box::new(held)));
    }

    pub(super) fn commit(&mut self, end: Position) {
        self.read_to = self.read_to.max(end);
        let is_open = self.transactions.back().is_some_and(|last| last.end.is_none());
        if !is_open {
            self.transactions.push_back(Transaction::default());
        }
        if let Some(last) = self.transactions.back_mut() {
            last.end = Some(end);
        }
        // An earlier reading may have published messages of a transaction without reading its end.
        if is_open && end > self.known.to {
            self.known.ids = QuickSet::default();
        }
        self.pass();
    }

    pub(super) fn idle(&mut self, position: Position) {
        // The database may report its position while it sends a transaction.
        if self.transactions.back().is_none_or(|last| last.end.is_some()) {
            self.commit(position);
        }
    }

    pub(super) fn undecided(&self) -> impl Iterator<Item = &Held> {
        self.messages.iter().flatten().map(|held| &**held)
    }

    pub(super) fn get(&self, id: MessageId) -> Option<&Held> {
        let index = self.index(*self.numbers.get(&id)?);
        self.messages.get(index)?.as_deref()
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number - self.first_message).unwrap_or(usize::MAX)
    }

    pub(super) fn published(&mut self, id: MessageId) {
        if self.decide(id) {
            self.published[0].push(id);
        }
    }

    pub(super) fn adopted(&mut self, id: MessageId) {
        self.decide(id);
    }

    fn decide(&mut self, id: MessageId) -> bool {
        let Some(number) = self.numbers.remove(&id) else {
            return false;
        };
        let index = self.index(number);
        let Some(held) = self.messages.get_mut(index).and_then(Option::take) else {
            return false;
        };
        while let Some(None) = self.messages.front() {
            self.messages.pop_front();
            self.first_message += 1;
        }
        self.bytes = self.bytes.saturating_sub(held.message.payload());
        let index = usize::try_from(held.transaction - self.first_transaction).unwrap_or(usize::MAX);
        if let Some(transaction) = self.transactions.get_mut(index) {
            transaction.undecided -= 1;
        }
        self.pass();
        true
    }

    /// Marks the messages `ids`, and earlier messages of their aggregates, as possibly pending.
    /// Returns them in log order.
    pub(super) fn doubt_with_earlier(&mut self, ids: &[MessageId]) -> Vec<Logged> {
        let asked: HashSet<MessageId> = ids.iter().copied().collect();
        let mut last: HashMap<Aggregate, u64> = HashMap::new();
        let numbered = asked.iter().filter_map(|id| self.numbers.get_key_value(id));
        for (id, number) in numbered {
            if let Some(held) = self.get(*id)
                && held.message.row.sequenced
            {
                let of_aggregate = last.entry(held.message.row.aggregate.clone()).or_default();
                *of_aggregate = (*of_aggregate).max(*number);
            }
        }
        let mut adopted = Vec::with_capacity(asked.len());
        for (number, held) in (self.first_message..).zip(&mut self.messages) {
            let Some(held) = held else { continue };
            let row = &held.message.row;
            let is_before = row.sequenced && last.get(&row.aggregate).is_some_and(|last| number <= *last);
            if is_before || asked.contains(&held.message.id) {
                held.is_doubtful = true;
                adopted.push(held.message.logged());
            }
        }
        adopted
    }

    pub(super) fn ids(&self) -> Vec<MessageId> {
        self.undecided().map(|held| held.message.id).collect()
    }

    /// Applies the result of a table query. A visible message that is not logged needs no further
    /// work here, because the table relay publishes pending messages.
    pub(super) fn told(
        &mut self,
        asked: &[Logged],
        logged: &HashSet<MessageId>,
        unseen: &HashSet<MessageId>,
    ) {
        for Logged { id, .. } in asked {
            if unseen.contains(id) {
                continue;
            }
            if !logged.contains(id) {
                self.adopted(*id);
            } else if let Some(number) = self.numbers.get(id) {
                let index = self.index(*number);
                if let Some(Some(held)) = self.messages.get_mut(index) {
                    held.is_doubtful = false;
                }
            }
        }
    }

    /// Whether the position to store is later than `stored` and has messages before it.
    pub(super) fn has_news(&self, stored: Position) -> bool {
        self.decided_messages > stored
    }

    pub(super) fn stored(&mut self) {
        self.published[1] = mem::take(&mut self.published[0]);
    }

    fn pass(&mut self) {
        while let Some(Transaction {
            end: Some(end),
            undecided: 0,
            has_messages,
        }) = self.transactions.front()
        {
            self.decided = self.decided.max(*end);
            if *has_messages {
                self.decided_messages = self.decided;
            }
            self.transactions.pop_front();
            self.first_transaction += 1;
        }
    }
}
