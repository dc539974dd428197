//! The undecided messages read from the log, and the resulting position.
//!
//! Invariant: [`Window::decided`] never passes a transaction with an undecided message, or a
//! transaction whose end was not read. No clock, no I/O.

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
    /// Messages in log order. `None`: a decided message after an undecided message, in eight bytes.
    messages: VecDeque<Option<Box<Held>>>,
    first_message: u64,
    numbers: QuickMap<MessageId, u64>,
    bytes: usize,
    /// Transactions not passed yet, in log order. The end of the last transaction may be unread.
    transactions: VecDeque<Transaction>,
    first_transaction: u64,
    read_to: Position,
    decided: Position,
    /// The decided position, without later transactions that hold no messages.
    decided_messages: Position,
    /// Before this position, an earlier reading may have let the table adopt messages.
    doubted_to: Position,
    /// Messages published since the last checkpoint, and since the checkpoint before: they are read
    /// again after an interruption. The list has message ids, because row ids may be reused after a
    /// database failover. A failover may lose an adoption, so adopted messages are not in the list.
    published: [Vec<MessageId>; 2],
    known: Known,
}

/// Published messages of earlier readings, until this reading has passed them.
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
    /// Whether the table may have adopted the message.
    pub(super) is_doubtful: bool,
}

#[derive(Debug, Default)]
struct Transaction {
    end: Option<Position>,
    undecided: usize,
    has_messages: bool,
}

impl Window {
    /// Begins a reading after the stored position. The table may have adopted messages before
    /// `adopted_to`.
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
        // A second row may have the same id: the first row decides both rows.
        if self.numbers.contains_key(&message.id) {
            return;
        }
        if self.known.ids.contains(&message.id) {
            // The next reading also needs the id, if the position has not passed the message.
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

    /// Marks these messages and earlier messages of their aggregates as doubtful, because their
    /// adoption begins. Returns the messages in log order.
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

    /// Applies a table query. Visible messages that are not logged belong to the table, so they are
    /// decided.
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

    /// Whether messages were decided after the stored position, or during the last store.
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
