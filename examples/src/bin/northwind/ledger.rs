//! Compares the committed messages with the stream and the effects.
//!
//! The ledger is a pure function of the evidence. Invariant: it balances only if every number is zero or as the input demands. Only copies on the
//! stream and repeated deliveries are exempt, because no system can promise that there are none.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::Hash;

use outbox_core::{Aggregate, MessageId};
use outbox_inbox::StableKey;
use serde::Serialize;

use crate::books::Books;
use crate::evidence::{Committed, Evidence};
use crate::order::Expected;
use crate::setup::Part;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ledger {
    /// Orders in the service's table.
    pub(crate) orders: u64,
    /// Messages in both outboxes.
    pub(crate) messages_committed: u64,
    /// Distinct messages on the stream.
    pub(crate) messages_on_stream: u64,
    /// Further copies of messages on the stream.
    pub(crate) stream_duplicates: u64,
    /// The number of deliveries to consumers.
    pub(crate) deliveries: u64,
    /// Effects per consumer, including double effects.
    pub(crate) effects: BTreeMap<&'static str, u64>,
    /// Committed messages that are missing on the stream, and missing effects.
    pub(crate) lost: u64,
    /// Messages on the stream and effects without a committed message.
    pub(crate) ghosts: u64,
    /// Effects of a message beyond its first.
    pub(crate) double_effects: u64,
    /// First appearances on the stream that are out of order.
    pub(crate) inversions: u64,
    /// Dead letters of the outbox. The JSON name is older than that term.
    #[serde(rename = "parked")]
    pub(crate) outbox_dead: u64,
    /// Dead letters of the consumers.
    pub(crate) dead_letters: u64,
    /// Milliseconds from the start of the programs to their end.
    pub(crate) elapsed_ms: u64,
    /// Descriptions of the mismatches.
    #[serde(skip)]
    pub(crate) complaints: Vec<String>,
}

/// The consumers in which an event type takes effect.
fn consumer_of(event_type: &str) -> &'static [Part] {
    match event_type {
        "order.placed" => &[Part::Inventory, Part::Billing],
        "order.shipped" => &[Part::Shipping],
        "shipment.dispatched" => &[Part::Notifications],
        _ => &[],
    }
}

impl Ledger {
    /// Balances the evidence against the input, whose books are `expected_books`.
    pub(crate) fn of(
        evidence: &Evidence,
        expected: Expected,
        expected_books: &Books,
        elapsed_ms: u64,
    ) -> Self {
        let stream = StreamCheck::of(evidence);
        let effects = EffectCheck::of(evidence);
        let mut ledger = Self {
            orders: evidence.orders,
            messages_committed: evidence.committed.len() as u64,
            messages_on_stream: stream.messages,
            stream_duplicates: stream.duplicates,
            deliveries: evidence.deliveries,
            effects: effects.counts,
            lost: stream.lost + effects.missing,
            ghosts: stream.ghosts + effects.ghosts,
            double_effects: effects.double,
            inversions: stream.inversions,
            outbox_dead: evidence
                .committed
                .iter()
                .filter(|message| message.outbox_dead)
                .count() as u64,
            dead_letters: evidence.dead_letters,
            elapsed_ms,
            complaints: Vec::new(),
        };
        ledger.complain(evidence, expected, expected_books);
        ledger
    }

    /// Whether every number is as promised.
    pub(crate) fn balances(&self) -> bool {
        self.complaints.is_empty()
    }

    fn complain(&mut self, evidence: &Evidence, expected: Expected, expected_books: &Books) {
        let mut complaints = Vec::new();
        let mut equal = |what: &str, found: u64, wanted: u64| {
            if found != wanted {
                complaints.push(format!("{what}: {found}, but must be {wanted}"));
            }
        };
        equal("orders saved", self.orders, expected.orders);
        equal("orders shipped", evidence.shipped, expected.shipped);
        equal("messages committed", self.messages_committed, expected.messages());
        equal(
            "messages on the stream",
            self.messages_on_stream,
            expected.messages(),
        );
        equal("lost", self.lost, 0);
        equal("ghosts", self.ghosts, 0);
        equal("double effects", self.double_effects, 0);
        equal("inversions", self.inversions, 0);
        equal("parked", self.outbox_dead, 0);
        equal("dead letters", self.dead_letters, 0);
        let found = &evidence.books;
        for (what, same) in [
            ("inventory", found.units == expected_books.units),
            ("billing", found.amounts_cents == expected_books.amounts_cents),
            ("shipping", found.shipments == expected_books.shipments),
        ] {
            if !same {
                complaints.push(format!(
                    "the tables of {what} differ from what the input adds up to"
                ));
            }
        }
        self.complaints = complaints;
    }
}

/// The result of comparing the stream with the outboxes.
#[derive(Debug, Default)]
struct StreamCheck {
    messages: u64,
    duplicates: u64,
    lost: u64,
    ghosts: u64,
    inversions: u64,
}

impl StreamCheck {
    fn of(evidence: &Evidence) -> Self {
        let committed: HashMap<MessageId, &Committed> = evidence
            .committed
            .iter()
            .map(|message| (message.id, message))
            .collect();
        let mut check = Self::default();
        let mut seen: HashSet<MessageId> = HashSet::new();
        let mut last: HashMap<&Aggregate, u64> = HashMap::new();
        for entry in &evidence.stream {
            // An entry that cannot be decoded was never committed either.
            let Ok(message) = &entry.message else {
                check.ghosts += 1;
                continue;
            };
            let same = |committed: &&&Committed| {
                committed.aggregate == message.aggregate
                    && committed.sequence == message.sequence
                    && committed.event_type == message.event_type
                    && committed.payload == message.payload
            };
            if committed.get(&message.id).filter(same).is_none() {
                check.ghosts += 1;
            } else if seen.insert(message.id) {
                let last = last.entry(&message.aggregate).or_default();
                check.inversions += u64::from(message.sequence != Some(*last + 1));
                *last = message.sequence.unwrap_or_default();
            } else {
                check.duplicates += 1;
            }
        }
        check.messages = seen.len() as u64;
        // A dead letter of the outbox is not lost: it is counted as a dead letter.
        let missing = |message: &&Committed| !message.outbox_dead && !seen.contains(&message.id);
        check.lost = evidence.committed.iter().filter(missing).count() as u64;
        check
    }
}

/// The result of comparing the effects with the outboxes.
#[derive(Debug, Default)]
struct EffectCheck {
    counts: BTreeMap<&'static str, u64>,
    missing: u64,
    ghosts: u64,
    double: u64,
}

impl EffectCheck {
    fn of(evidence: &Evidence) -> Self {
        let mut check = Self::default();
        for part in Part::CONSUMERS {
            let wanted = evidence
                .committed
                .iter()
                .filter(|message| consumer_of(&message.event_type).contains(&part));
            if part == Part::Notifications {
                // The key is recomputed, so that an unstable key shows.
                let line = |message: &Committed| {
                    let key = StableKey::new(part.name(), message.id.into()).as_uuid();
                    (key, message.aggregate.id.clone())
                };
                let lines = evidence
                    .notices
                    .iter()
                    .map(|notice| (notice.key, notice.order_id.to_string()));
                check.balance(part, wanted.map(line), lines);
            } else {
                let effects = evidence.effects.get(&part).into_iter().flatten().copied();
                check.balance(part, wanted.map(|message| message.id), effects);
            }
        }
        check
    }

    fn balance<K: Eq + Hash>(
        &mut self,
        part: Part,
        wanted: impl Iterator<Item = K>,
        effects: impl Iterator<Item = K>,
    ) {
        let mut times: HashMap<K, u64> = wanted.map(|key| (key, 0)).collect();
        let mut count = 0;
        for effect in effects {
            count += 1;
            match times.get_mut(&effect) {
                Some(times) => *times += 1,
                None => self.ghosts += 1,
            }
        }
        self.counts.insert(part.name(), count);
        self.missing += times.values().filter(|times| **times == 0).count() as u64;
        self.double += times.values().map(|times| times.saturating_sub(1)).sum::<u64>();
    }
}

/// The ledger as a table.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effects = self
            .effects
            .iter()
            .map(|(consumer, count)| (format!("effects of {consumer}"), *count));
        let rows = [
            ("orders saved", self.orders),
            ("messages committed", self.messages_committed),
            ("messages on the stream", self.messages_on_stream),
            ("further copies of them", self.stream_duplicates),
            ("deliveries to consumers", self.deliveries),
        ];
        let zeros = [
            ("lost", self.lost),
            ("ghosts", self.ghosts),
            ("double effects", self.double_effects),
            ("inversions", self.inversions),
            ("parked", self.outbox_dead),
            ("dead letters", self.dead_letters),
        ];
        let named = |(name, count): &(&str, u64)| ((*name).to_owned(), *count);
        for (name, count) in rows
            .iter()
            .map(named)
            .chain(effects)
            .chain(zeros.iter().map(named))
        {
            writeln!(f, "{name:<28}{count:>10}")?;
        }
        writeln!(f, "{:<28}{:>10}", "milliseconds", self.elapsed_ms)?;
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
mod tests;
