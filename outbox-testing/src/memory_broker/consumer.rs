//! The durable state of one consumer in the in-memory broker.
//!
//! Invariant: it is given entries behind its cursor, in the order of the log, that it wants. Not here: the log ([`super::state`]).

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use outbox_core::event::EventDescriptor;

use super::entry::Entry;
use super::unacked::Unacked;

/// The durable state of a consumer.
#[derive(Debug, Default)]
pub(super) struct Consumer {
    pub(super) generation: u64,
    pub(super) deliveries: u64,
    /// Event types, and selections such as `order.*`, that any subscription under the consumer's name has asked for.
    pub(super) event_types: HashSet<String>,
    /// Prefixes of further wanted event types, such as `order.`.
    pub(super) aggregates: HashSet<String>,
    pub(super) in_flight_max: usize,
    pub(super) ack_wait: Duration,
    /// The first stream sequence that it may be given.
    pub(super) start: u64,
    /// The stream sequence up to which the consumer has looked at the log.
    pub(super) cursor: u64,
    pub(super) unacked: Unacked,
    /// Planned copies, delivered at once, whether acknowledged or not: stream sequence and delivery count.
    pub(super) copies: VecDeque<(u64, u64)>,
    /// Subscriptions that wait for a message at this moment.
    pub(super) waiting: usize,
}

impl Consumer {
    /// Whether any subscription has asked for an event type, by its name or by a selection that has it.
    pub(super) fn asks_for(&self, event_type: &str) -> bool {
        let asks = |name: &str| self.event_types.contains(name);
        let aggregate = event_type
            .split_once('.')
            .map(|(aggregate, _)| format!("{aggregate}.*"));
        let everything = EventDescriptor::EVERYTHING.event_type();
        asks(event_type) || aggregate.is_some_and(|aggregate| asks(&aggregate)) || asks(&everything)
    }

    fn wants(&self, entry: &Entry) -> bool {
        entry.event_type.as_ref().is_none_or(|event_type| {
            let whole = |aggregate: &String| event_type.starts_with(aggregate.as_str());
            self.asks_for(event_type) || self.aggregates.iter().any(whole)
        })
    }

    /// Moves past the next wanted entry and returns its stream sequence, unless the consumer has too many
    /// unacknowledged messages.
    pub(super) fn advance(&mut self, log: &BTreeMap<u64, Entry>) -> Option<u64> {
        if self.unacked.len() >= self.in_flight_max {
            return None;
        }
        let wanted = self.coming(log).next();
        let end = log.last_key_value().map_or(0, |(last, _)| *last);
        self.cursor = wanted.unwrap_or(self.cursor.max(end));
        wanted
    }

    /// Stream sequences of wanted entries behind the cursor.
    fn coming(&self, log: &BTreeMap<u64, Entry>) -> impl Iterator<Item = u64> {
        log.range(self.cursor + 1..)
            .filter(|(_, entry)| self.wants(entry))
            .map(|(stream_sequence, _)| *stream_sequence)
    }

    /// The oldest entry that is not acknowledged, delivered or not.
    pub(super) fn oldest(&self, log: &BTreeMap<u64, Entry>) -> Option<u64> {
        let unacked = self.unacked.oldest();
        unacked.into_iter().chain(self.coming(log).next()).min()
    }

    /// A consumer that was given nothing.
    pub(super) fn new(generation: u64, start: u64) -> Self {
        Self {
            generation,
            start,
            cursor: start - 1,
            ..Self::default()
        }
    }

    pub(super) fn backlog(&self, log: &BTreeMap<u64, Entry>) -> u64 {
        (self.unacked.len() + self.coming(log).count()) as u64
    }
}
