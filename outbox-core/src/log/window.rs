//! The messages that were read from the log and are not decided, and the position that follows from them.
//!
//! Invariant: [`Window::decided`] never passes a transaction of which a message is undecided, nor one whose end was not read. It is pure: it reads no
//! clock, and does no I/O.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

use super::{Logged, LoggedMessage, Position};
use crate::message::{Aggregate, MessageId};
use crate::quick_map::{QuickMap, QuickSet};

#[derive(Debug, Default)]
pub(super) struct Window {
    /// In the order of the log. `None`: decided, behind one that is not; eight bytes each.
    messages: VecDeque<Option<Box<Held>>>,
    /// Number of the first of them; each message has one, counted from 0.
    first_message: u64,
    /// Their numbers, by row id.
    numbers: QuickMap<i64, u64>,
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
    /// Messages that were published since the last checkpoint, and since the one before. They come again if the reading is interrupted. By their ids: after a
    /// failover of the database, row ids may be given once more. Not those that were adopted: after it, the database may have forgotten that.
    published: [Vec<MessageId>; 2],
    /// Those of earlier readings, until this one has come further.
    known: QuickSet<MessageId>,
    /// Up to where earlier readings have read whole transactions.
    known_to: Position,
}

/// A message that is not decided.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) message: LoggedMessage,
    transaction: u64,
    /// The table may have adopted it.
    pub(super) is_doubtful: bool,
}

/// A message that the table is to adopt.
#[derive(Debug, PartialEq)]
pub(super) struct Adopted {
    pub(super) row_id: i64,
    pub(super) logged: Logged,
}

#[derive(Debug, Default)]
struct Transaction {
    end: Option<Position>,
    undecided: usize,
    has_messages: bool,
}

impl Window {
    /// Forgets what was read. A new reading begins behind the stored position; before `adopted_to` it may meet what was adopted.
    pub(super) fn begin(&mut self, adopted_to: Position) {
        let mut known = mem::take(&mut self.known);
        known.extend(self.published.iter().flatten());
        *self = Self {
            doubted_to: adopted_to,
            known,
            known_to: self.known_to.max(self.read_to),
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
        if self.known.contains(&message.id) {
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
        self.numbers.insert(message.row.row_id, number);
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
        // An earlier reading may have published messages of one transaction whose end it had not read.
        if is_open && end > self.known_to {
            self.known = QuickSet::default();
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

    pub(super) fn get(&self, row_id: i64) -> Option<&Held> {
        let index = self.index(*self.numbers.get(&row_id)?);
        self.messages.get(index)?.as_deref()
    }

    /// The place of a message among the messages.
    fn index(&self, number: u64) -> usize {
        usize::try_from(number - self.first_message).unwrap_or(usize::MAX)
    }

    /// The broker has confirmed a message. Does nothing if it is not held.
    pub(super) fn published(&mut self, row_id: i64) {
        if let Some(id) = self.decide(row_id) {
            self.published[0].push(id);
        }
    }

    /// The table has adopted a message. Does nothing if it is not held.
    pub(super) fn adopted(&mut self, row_id: i64) {
        self.decide(row_id);
    }

    fn decide(&mut self, row_id: i64) -> Option<MessageId> {
        let number = self.numbers.remove(&row_id)?;
        let index = self.index(number);
        let held = self.messages.get_mut(index)?.take()?;
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
        Some(held.message.id)
    }

    /// An adoption begins of these messages, and of those before them in their aggregates: it is not known any more whether they are the log's. Returns them, in
    /// the order of the log.
    pub(super) fn doubt_with_earlier(&mut self, row_ids: &[i64]) -> Vec<Adopted> {
        let asked: HashSet<i64> = row_ids.iter().copied().collect();
        // The last of them of each aggregate.
        let mut last: HashMap<Aggregate, u64> = HashMap::new();
        let numbered = asked
            .iter()
            .filter_map(|row_id| self.numbers.get_key_value(row_id));
        for (row_id, number) in numbered {
            if let Some(held) = self.get(*row_id)
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
            if is_before || asked.contains(&row.row_id) {
                held.is_doubtful = true;
                adopted.push(Adopted {
                    row_id: row.row_id,
                    logged: held.message.logged(),
                });
            }
        }
        adopted
    }

    /// The row ids of all undecided messages, in the order of the log.
    pub(super) fn row_ids(&self) -> Vec<i64> {
        self.undecided().map(|held| held.message.row.row_id).collect()
    }

    /// The table has told which of these messages are still the log's, and which it does not know yet. The others are the table's, and so they are decided.
    pub(super) fn told(
        &mut self,
        asked: &[(i64, Logged)],
        logged: &HashSet<MessageId>,
        unseen: &HashSet<MessageId>,
    ) {
        for (row_id, Logged { id, .. }) in asked {
            if unseen.contains(id) {
                continue;
            }
            if !logged.contains(id) {
                self.adopted(*row_id);
            } else if let Some(number) = self.numbers.get(row_id) {
                let index = self.index(*number);
                if let Some(Some(held)) = self.messages.get_mut(index) {
                    held.is_doubtful = false;
                }
            }
        }
    }

    /// Whether messages are decided behind the stored position, also those that were decided while it was being stored.
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

impl LoggedMessage {
    pub(super) fn logged(&self) -> Logged {
        Logged {
            id: self.id,
            transaction: self.transaction,
            passed_from: self.passed_from,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::OffsetDateTime;

    use super::*;
    use crate::store::FetchedRow;

    fn message(row_id: i64) -> LoggedMessage {
        LoggedMessage {
            id: id(row_id),
            row: FetchedRow {
                row_id,
                partition: 0,
                aggregate: Aggregate::new("order", "1"),
                sequenced: true,
                attempts: 0,
                failures: 0,
                waited: false,
                age: Duration::ZERO,
                message: Err("not needed".to_owned().into()),
            },
            transaction: 0,
            passed_from: Position(0),
            created_at: OffsetDateTime::UNIX_EPOCH,
            available_at: None,
        }
    }

    fn id(row_id: i64) -> MessageId {
        MessageId::from(uuid::Uuid::from_u128(row_id as u128))
    }

    /// Each list is a transaction, which ends at 10, 20, and so on.
    fn window(transactions: &[&[i64]]) -> Window {
        let mut window = Window::default();
        for (n, row_ids) in transactions.iter().enumerate() {
            row_ids.iter().for_each(|row_id| window.push(message(*row_id)));
            window.commit(Position(10 * (n as u64 + 1)));
        }
        window
    }

    fn held(window: &Window) -> Vec<i64> {
        window.undecided().map(|held| held.message.row.row_id).collect()
    }

    #[test]
    fn the_position_passes_a_transaction_when_all_of_it_is_decided() {
        let mut window = window(&[&[1, 2], &[3], &[4]]);
        assert_eq!(window.decided(), Position(0));
        for (row_id, position) in [(3, 0), (2, 0), (1, 20), (4, 30)] {
            window.published(row_id);
            assert_eq!(window.decided(), Position(position), "{row_id}");
        }
        assert_eq!((window.len(), window.bytes()), (0, 0));
    }

    #[test]
    fn a_transaction_without_an_end_is_not_passed() {
        let mut window = window(&[&[1]]);
        window.push(message(2));
        window.published(1);
        window.published(2);
        window.idle(Position(15));
        assert_eq!(window.decided(), Position(10));
        window.push(message(3));
        window.commit(Position(20));
        assert_eq!(window.decided(), Position(10), "message 3 is undecided");
        window.published(3);
        assert_eq!(window.decided(), Position(20));
    }

    #[test]
    fn an_idle_log_moves_the_position_only_behind_what_is_undecided() {
        let mut window = window(&[&[1]]);
        window.idle(Position(50));
        assert_eq!((window.decided(), window.read_to()), (Position(0), Position(50)));
        window.published(1);
        assert_eq!(window.decided(), Position(50));
        window.commit(Position(60));
        assert_eq!(window.decided(), Position(60));
    }

    /// Otherwise it would be stored when the next message is decided, and come again after a crash until then.
    #[test]
    fn what_is_decided_while_the_position_is_being_stored_is_news() {
        let mut window = window(&[&[1], &[2]]);
        window.published(1);
        let stored = window.decided();
        window.published(2);
        window.stored();
        assert!(window.has_news(stored));
        assert!(!window.has_news(window.decided()));
        window.idle(Position(50));
        assert!(!window.has_news(Position(20)), "it holds no messages");
    }

    #[test]
    fn a_verdict_on_a_message_that_is_not_held_changes_nothing() {
        let mut window = window(&[&[1], &[2]]);
        window.published(7);
        window.published(2);
        window.published(2);
        assert_eq!((window.decided(), held(&window)), (Position(0), vec![1]));
    }

    #[test]
    fn what_the_table_has_adopted_is_decided() {
        let mut window = Window::default();
        window.begin(Position(15));
        for row_id in [1, 2] {
            window.push(message(row_id));
        }
        window.commit(Position(10));
        window.push(message(3));
        window.commit(Position(20));
        window.push(message(4));
        window.commit(Position(30));
        let doubtful: Vec<_> = window
            .undecided()
            .filter(|held| held.is_doubtful)
            .map(|held| (held.message.row.row_id, held.message.logged()))
            .collect();
        assert_eq!(
            doubtful.iter().map(|(row_id, _)| *row_id).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        window.told(&doubtful, &HashSet::from([id(2)]), &HashSet::from([id(3)]));
        assert_eq!(held(&window), [2, 3, 4]);
        assert!(!window.get(2).unwrap().is_doubtful);
        assert!(window.get(3).unwrap().is_doubtful, "nobody knows yet");
        window.told(&doubtful[2..], &HashSet::new(), &HashSet::new());
        assert_eq!(held(&window), [2, 4]);
    }

    /// The messages of one aggregate: an earlier one that stayed behind would be overtaken.
    #[test]
    fn what_comes_before_an_adopted_message_is_adopted_with_it() {
        let mut window = Window::default();
        for (row_id, aggregate) in [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b")] {
            let mut message = message(row_id);
            message.row.aggregate = Aggregate::new("order", aggregate);
            window.push(message);
        }
        let row_ids = |adopted: Vec<Adopted>| -> Vec<i64> {
            adopted.into_iter().map(|message| message.row_id).collect()
        };
        assert_eq!(row_ids(window.doubt_with_earlier(&[9])), [0_i64; 0]);
        assert_eq!(row_ids(window.doubt_with_earlier(&[3])), [1, 3]);
        assert!(window.get(1).unwrap().is_doubtful && !window.get(4).unwrap().is_doubtful);
        assert_eq!(row_ids(window.doubt_with_earlier(&[5, 1])), [1, 2, 5]);
    }

    #[test]
    fn what_was_decided_before_an_interruption_is_known_when_it_comes_again() {
        let mut window = window(&[&[1], &[2], &[3]]);
        window.published(2);
        window.stored();
        window.published(3);
        for _ in 0..2 {
            window.begin(Position(0));
            for row_id in [1, 2, 3, 4] {
                window.push(message(row_id));
                window.commit(Position(row_id as u64 * 10));
            }
            assert_eq!(held(&window), [1, 4]);
        }
        window.published(1);
        assert_eq!(window.decided(), Position(30));
    }

    /// Without an end: a reading that comes further has read what was published of it, and needs not know it any longer.
    #[test]
    fn what_was_published_of_a_transaction_without_an_end_is_known_when_it_comes_again() {
        let mut window = window(&[&[1]]);
        window.published(1);
        window.push(message(2));
        window.published(2);
        for reading in 0..3 {
            window.begin(Position(0));
            (reading..3).for_each(|_| window.stored());
            window.idle(Position(5));
            window.push(message(1));
            window.commit(Position(10));
            window.idle(Position(15));
            window.push(message(2));
            assert_eq!(held(&window), [0_i64; 0], "reading {reading}");
        }
        window.commit(Position(20));
        assert!(window.known.is_empty());
        assert_eq!(window.decided(), Position(20));
    }

    /// A replica that takes over may lack the adoption, and then the message is the log's again. The table is asked.
    #[test]
    fn what_was_adopted_before_an_interruption_is_doubtful_when_it_comes_again() {
        let mut window = window(&[&[1], &[2]]);
        window.adopted(1);
        window.published(2);
        window.begin(Position(20));
        for row_id in [1, 2] {
            window.push(message(row_id));
            window.commit(Position(row_id as u64 * 10));
        }
        assert_eq!(held(&window), [1]);
        assert!(window.get(1).unwrap().is_doubtful);
        assert_eq!(window.decided(), Position(0));
    }
}
