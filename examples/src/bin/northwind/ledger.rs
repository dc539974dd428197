//! Compares the committed messages with the stream and the effects.
//!
//! Invariant: the ledger balances only if every number is zero or as the input requires. Copies on
//! the stream and redeliveries may have any number, because no system can rule them out.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use outbox::testing::ledger::{Committed, Logged};
use outbox::testing::{Ledger as Balance, Violation};
use outbox_core::{Message, MessageStatus};
use outbox_inbox::StableKey;
use serde::Serialize;
use uuid::Uuid;

use crate::books::Books;
use crate::evidence::Evidence;
use crate::order::Expected;
use crate::setup::Part;

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Ledger {
    pub(crate) orders: u64,
    pub(crate) messages_committed: u64,
    pub(crate) messages_on_stream: u64,
    pub(crate) stream_duplicates: u64,
    pub(crate) deliveries: u64,
    pub(crate) effects: BTreeMap<&'static str, u64>,
    /// Committed messages that are missing on the stream, and missing effects.
    pub(crate) lost: u64,
    /// Messages on the stream and effects without a committed message.
    pub(crate) ghosts: u64,
    /// Effects of a message beyond its first.
    pub(crate) double_effects: u64,
    /// First appearances on the stream that are out of order.
    pub(crate) inversions: u64,
    #[serde(rename = "parked")]
    pub(crate) outbox_dead: u64,
    pub(crate) dead_letters: u64,
    pub(crate) elapsed_ms: u64,
    #[serde(skip)]
    pub(crate) complaints: Vec<String>,
}

fn consumers_of(event_type: &str) -> &'static [Part] {
    match event_type {
        "order.placed" => &[Part::Inventory, Part::Billing],
        "order.shipped" => &[Part::Shipping],
        "shipment.dispatched" => &[Part::Notifications],
        _ => &[],
    }
}

/// The key of a notice is recomputed, to detect an unstable key.
fn effect_id(part: Part, message: &Message) -> Uuid {
    match part {
        Part::Notifications => StableKey::new(part.name(), message.event_id).as_uuid(),
        _ => message.id.as_uuid(),
    }
}

impl Ledger {
    pub(crate) fn of(evidence: &Evidence, expected: Expected, books: &Books, elapsed_ms: u64) -> Self {
        let mut ledger = Self {
            orders: evidence.orders,
            messages_committed: evidence.committed.len() as u64,
            deliveries: evidence.deliveries,
            outbox_dead: evidence.outbox_dead,
            dead_letters: evidence.dead_letters,
            elapsed_ms,
            ..Self::default()
        };
        ledger.balance_stream(evidence);
        for part in Part::CONSUMERS {
            ledger.balance_effects(part, evidence);
        }
        let messages = expected.messages();
        for (what, found, wanted) in [
            ("orders saved", ledger.orders, expected.orders),
            ("orders shipped", evidence.shipped, expected.shipped),
            ("messages committed", ledger.messages_committed, messages),
            ("messages on the stream", ledger.messages_on_stream, messages),
            ("wrong books", u64::from(evidence.books != *books), 0),
        ]
        .into_iter()
        .chain(ledger.zeros().map(|(what, found)| (what, found, 0)))
        {
            if found != wanted {
                let complaint = format!("{what}: {found}, but must be {wanted}");
                ledger.complaints.push(complaint);
            }
        }
        ledger
    }

    pub(crate) fn balances(&self) -> bool {
        self.complaints.is_empty()
    }

    fn zeros(&self) -> [(&'static str, u64); 6] {
        [
            ("lost", self.lost),
            ("ghosts", self.ghosts),
            ("double effects", self.double_effects),
            ("inversions", self.inversions),
            ("parked", self.outbox_dead),
            ("dead letters", self.dead_letters),
        ]
    }

    fn balance_stream(&mut self, evidence: &Evidence) {
        let messages = evidence.stream.iter().flat_map(|entry| &entry.message);
        let log: Vec<Logged> = messages.map(Logged::from).collect();
        self.ghosts += (evidence.stream.len() - log.len()) as u64;
        let committed = evidence.committed.iter().map(|message| Committed {
            id: message.event_id,
            aggregate: message.aggregate.clone(),
            sequence: message.sequence,
            status: MessageStatus::Published,
            halts: false,
        });
        let balance = Balance {
            committed: committed.collect(),
            log,
        };
        self.stream_duplicates = balance.copies() as u64;
        self.messages_on_stream = (balance.log.len() - balance.copies()) as u64;
        for violation in balance.check() {
            match violation {
                Violation::Lost { .. } => self.lost += 1,
                Violation::Ghost { .. } => self.ghosts += 1,
                _ => self.inversions += 1,
            }
            self.complaints.push(violation.to_string());
        }
    }

    fn balance_effects(&mut self, part: Part, evidence: &Evidence) {
        let mut times: HashMap<Uuid, u64> = evidence
            .committed
            .iter()
            .filter(|message| consumers_of(&message.event_type).contains(&part))
            .map(|message| (effect_id(part, message), 0))
            .collect();
        let effects = evidence.effects.get(&part).map_or(&[][..], Vec::as_slice);
        for effect in effects {
            match times.get_mut(effect) {
                Some(times) => *times += 1,
                None => self.ghosts += 1,
            }
        }
        self.effects.insert(part.name(), effects.len() as u64);
        self.lost += times.values().filter(|times| **times == 0).count() as u64;
        self.double_effects += times.values().map(|times| times.saturating_sub(1)).sum::<u64>();
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, count: u64| writeln!(f, "{name:<28}{count:>10}");
        row("orders saved", self.orders)?;
        row("messages committed", self.messages_committed)?;
        row("messages on the stream", self.messages_on_stream)?;
        row("further copies", self.stream_duplicates)?;
        row("deliveries to consumers", self.deliveries)?;
        for (consumer, count) in &self.effects {
            row(&format!("effects of {consumer}"), *count)?;
        }
        for (name, count) in self.zeros() {
            row(name, count)?;
        }
        row("milliseconds", self.elapsed_ms)?;
        if self.balances() {
            return f.write_str("The ledger balances.");
        }
        f.write_str("The ledger does not balance:")?;
        self.complaints
            .iter()
            .try_for_each(|complaint| write!(f, "\n  {complaint}"))
    }
}

#[cfg(test)]
mod tests {
    use outbox::testing::LogEntry;
    use outbox_core::NewMessage;

    use super::*;
    use crate::events::{OrderPlaced, OrderShipped, ShipmentDispatched};
    use crate::generate::generate;

    fn good() -> (Evidence, Expected, Books) {
        let orders = generate(3);
        let mut evidence = Evidence {
            orders: 3,
            shipped: 3,
            ..Evidence::default()
        };
        for order in &orders {
            let (order_id, shipped_date) = (order.order_id, order.shipped_date.unwrap());
            let shipped = OrderShipped {
                order_id,
                shipped_date,
            };
            let dispatched = ShipmentDispatched {
                order_id,
                shipped_date,
            };
            let placed = OrderPlaced::from(order);
            publish(&mut evidence, NewMessage::from_event(&placed).unwrap(), 1);
            publish(&mut evidence, NewMessage::from_event(&shipped).unwrap(), 2);
            publish(&mut evidence, NewMessage::from_event(&dispatched).unwrap(), 1);
        }
        let books = Books::of(&orders);
        evidence.books = books.clone();
        (evidence, Expected::of(&orders), books)
    }

    fn publish(evidence: &mut Evidence, message: NewMessage, sequence: u64) {
        let message = message.into_message(Some(sequence), time::OffsetDateTime::UNIX_EPOCH);
        for part in consumers_of(&message.event_type) {
            let effects = evidence.effects.entry(*part).or_default();
            effects.push(effect_id(*part, &message));
        }
        evidence.committed.push(message.clone());
        evidence.stream.push(LogEntry {
            stream_sequence: 1,
            subject: "events".to_owned(),
            message: Ok(message),
        });
    }

    #[track_caller]
    fn planted(mistake: impl FnOnce(&mut Evidence)) -> Ledger {
        let (mut evidence, expected, books) = good();
        mistake(&mut evidence);
        let ledger = Ledger::of(&evidence, expected, &books, 0);
        assert!(!ledger.balances(), "{ledger}");
        ledger
    }

    #[test]
    fn good_evidence_balances_also_with_copies_on_the_stream() {
        let (mut evidence, expected, books) = good();
        evidence.stream.extend(evidence.stream.clone());
        let ledger = Ledger::of(&evidence, expected, &books, 0);
        assert!(ledger.balances(), "{ledger}");
        let messages = (ledger.messages_committed, ledger.messages_on_stream);
        assert_eq!((messages, ledger.stream_duplicates), ((9, 9), 9));
        assert_eq!(ledger.effects.values().sum::<u64>(), 12);
    }

    #[test]
    fn losses_show() {
        assert_eq!(planted(|evidence| drop(evidence.stream.pop())).lost, 1);
        for part in Part::CONSUMERS {
            let forget = |evidence: &mut Evidence| evidence.effects.get_mut(&part).unwrap().clear();
            assert_eq!(planted(forget).lost, 3);
        }
    }

    #[test]
    fn ghosts_show() {
        // The third order was rolled back, but its messages were published and applied.
        let ghost = planted(|evidence| evidence.committed.truncate(6));
        assert_eq!(ghost.ghosts, 3 + 4);
        // The committed message differs from the published one.
        let changed = planted(|evidence| evidence.committed[0].sequence = Some(9));
        assert_eq!(changed.ghosts, 1);
    }

    #[test]
    fn double_effects_show() {
        for part in Part::CONSUMERS {
            let repeat = |evidence: &mut Evidence| {
                let effects = evidence.effects.get_mut(&part).unwrap();
                effects.push(effects[0]);
            };
            assert_eq!(planted(repeat).double_effects, 1);
        }
    }

    #[test]
    fn inversions_show() {
        assert_eq!(planted(|evidence| evidence.stream.swap(0, 1)).inversions, 1);
    }

    #[test]
    fn other_books_and_numbers_show() {
        planted(|evidence| *evidence.books.units.values_mut().next().unwrap() += 1);
        planted(|evidence| *evidence.books.amounts_cents.values_mut().next().unwrap() -= 1);
        planted(|evidence| drop(evidence.books.shipments.pop_first()));
        planted(|evidence| drop(evidence.books.notices.pop_first()));
        planted(|evidence| evidence.orders -= 1);
        planted(|evidence| evidence.dead_letters = 1);
        planted(|evidence| evidence.outbox_dead = 1);
        planted(|evidence| *evidence = Evidence::default());
    }
}
