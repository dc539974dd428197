//! The durable state of one consumer.
//!
//! Invariant: the consumer receives the wanted entries after its cursor, in log order.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use outbox_core::event::EventDescriptor;

use tokio::time::Instant;

use super::entry::Entry;

#[derive(Debug, Default)]
pub(super) struct Consumer {
    pub(super) generation: u64,
    pub(super) deliveries: u64,
    /// Event types and selections such as `order.*` that all subscriptions requested.
    pub(super) event_types: HashSet<String>,
    pub(super) aggregates: HashSet<String>,
    pub(super) in_flight_max: usize,
    pub(super) ack_wait: Duration,
    pub(super) start: u64,
    pub(super) cursor: u64,
    /// Delivery count and time of the next delivery of each delivered, unacknowledged entry.
    pub(super) unacked: BTreeMap<u64, (u64, Instant)>,
    /// Stream sequence and delivery count of copies that a test requested. Copies are delivered
    /// even if the message is acknowledged.
    pub(super) copies: VecDeque<(u64, u64)>,
    pub(super) waiting: usize,
}

impl Consumer {
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

    pub(super) fn advance(&mut self, log: &BTreeMap<u64, Entry>) -> Option<u64> {
        if self.unacked.len() >= self.in_flight_max {
            return None;
        }
        let wanted = self.coming(log).next();
        let end = log.last_key_value().map_or(0, |(last, _)| *last);
        self.cursor = wanted.unwrap_or(self.cursor.max(end));
        wanted
    }

    fn coming(&self, log: &BTreeMap<u64, Entry>) -> impl Iterator<Item = u64> {
        log.range(self.cursor + 1..)
            .filter(|(_, entry)| self.wants(entry))
            .map(|(stream_sequence, _)| *stream_sequence)
    }

    pub(super) fn oldest(&self, log: &BTreeMap<u64, Entry>) -> Option<u64> {
        let unacked = self.unacked.keys().next().copied();
        unacked.into_iter().chain(self.coming(log).next()).min()
    }

    pub(super) fn first_due(&self, now: Instant) -> Option<(u64, u64)> {
        let due = self.unacked.iter().find(|(_, (_, next))| *next <= now);
        due.map(|(stream_sequence, (count, _))| (*stream_sequence, *count))
    }

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
