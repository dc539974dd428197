//! The messages that were read from the log and are not decided, and the position that follows from
//! them.
//!
//! Invariant: [`Window::decided`] never passes a transaction of which a message is undecided, nor
//! one whose end was not read. It is pure: it reads no clock, and does no I/O.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

use foldhash::fast::RandomState;
use outbox_core::log::{Logged, LoggedMessage, Position};
use outbox_core::{Aggregate, MessageId};

/// A map with a fast hash. The service chooses the keys, not a stranger.
pub(super) type QuickMap<K, V> = HashMap<K, V, RandomState>;
pub(super) type QuickSet<T> = HashSet<T, RandomState>;

#[derive(Debug, Default)]
pub(super) struct Window {
    /// In the order of the log. `None`: decided, behind one that is not; eight bytes each.
    messages: VecDeque<Option<Box<Held>>>,
    /// Number of the first of them; each message has one, counted from 0.
    first_message: u64,
    /// Their numbers.
    numbers: QuickMap<MessageId, u64>,
    bytes: usize,
    /// Transactions that are not passed, in the order of the log. The last one may have no end yet.
    transactions: VecDeque<Transaction>,
    /// The number of the first of them.
    first_transaction: u64,
    /// Up to where the log was read, and up to where everything is decided.
    read_to: Position,
    decided: Position,
    /// As `decided`, without what holds no messages.
    decided_messages: Position,
    /// What is read before this position may have been adopted in an earlier reading.
    doubted_to: Position,
    /// Messages that were published since the last checkpoint, and since the one before. They come
    /// again if the reading is interrupted. By their ids: after a failover of the database, row ids
    /// may be given once more. Not those that were adopted: after it, the database may have
    /// forgotten that.
    published: [Vec<MessageId>; 2],
    known: Known,
}

/// Published messages of earlier readings, until this reading has come further.
#[derive(Debug, Default)]
struct Known {
    ids: QuickSet<MessageId>,
    /// Up to where earlier readings have read whole transactions.
    to: Position,
}

/// A message that is not decided.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) message: LoggedMessage,
    transaction: u64,
    /// The table may have adopted it.
    pub(super) is_doubtful: bool,
}

#[derive(Debug, Default)]
struct Transaction {
    end: Option<Position>,
    undecided: usize,
    has_messages: bool,
}

impl Window {
    /// Forgets what was read. A new reading begins behind the stored position; before `adopted_to`
    /// it may meet what was adopted.
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

    /// Everything up to here is decided.
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
        // A copy of a row, id and all: the first row decides both.
        if self.numbers.contains_key(&message.id) {
            return;
        }
        if self.known.ids.contains(&message.id) {
            // So that the next reading knows it too, if the position does not pass it before.
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

    /// The end of the transaction whose messages came last.
    pub(super) fn commit(&mut self, end: Position) {
        self.read_to = self.read_to.max(end);
        let is_open = self.transactions.back().is_some_and(|last| last.end.is_none());
        if !is_open {
            self.transactions.push_back(Transaction::default());
        }
        if let Some(last) = self.transactions.back_mut() {
            last.end = Some(end);
        }
        // An earlier reading may have published messages of one transaction whose end it had not
        // read.
        if is_open && end > self.known.to {
            self.known.ids = QuickSet::default();
        }
        self.pass();
    }

    /// The log holds nothing more up to here.
    pub(super) fn idle(&mut self, position: Position) {
        // The database may tell its position while it sends a transaction.
        if self.transactions.back().is_none_or(|last| last.end.is_some()) {
            self.commit(position);
        }
    }

    /// The undecided messages in the order of the log.
    pub(super) fn undecided(&self) -> impl Iterator<Item = &Held> {
        self.messages.iter().flatten().map(|held| &**held)
    }

    pub(super) fn get(&self, id: MessageId) -> Option<&Held> {
        let index = self.index(*self.numbers.get(&id)?);
        self.messages.get(index)?.as_deref()
    }

    /// The place of a message among the messages.
    fn index(&self, number: u64) -> usize {
        usize::try_from(number - self.first_message).unwrap_or(usize::MAX)
    }

    /// The broker has confirmed a message. Does nothing if it is not held.
    pub(super) fn published(&mut self, id: MessageId) {
        if self.decide(id) {
            self.published[0].push(id);
        }
    }

    /// The table has adopted a message. Does nothing if it is not held.
    pub(super) fn adopted(&mut self, id: MessageId) {
        self.decide(id);
    }

    /// Returns whether the message was held.
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

    /// An adoption begins of these messages, and of those before them in their aggregates: it is
    /// not known any more whether they are the log's. Returns them, in the order of the log.
    pub(super) fn doubt_with_earlier(&mut self, ids: &[MessageId]) -> Vec<Logged> {
        let asked: HashSet<MessageId> = ids.iter().copied().collect();
        // The last of them of each aggregate.
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

    /// The ids of all undecided messages, in the order of the log.
    pub(super) fn ids(&self) -> Vec<MessageId> {
        self.undecided().map(|held| held.message.id).collect()
    }

    /// The table has told which of these messages are still the log's, and which it does not know
    /// yet. The others are the table's, and so they are decided.
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

    /// Whether messages are decided behind the stored position, also those that were decided while
    /// it was being stored.
    pub(super) fn has_news(&self, stored: Position) -> bool {
        self.decided_messages > stored
    }

    /// The position was stored.
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
