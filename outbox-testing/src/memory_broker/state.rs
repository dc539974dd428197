//! The state of the in-memory broker.
//!
//! Invariants: stream sequences are never reused. `unacked` holds exactly a consumer's delivered,
//! unacknowledged entries. Entries up to `cursor` were delivered or are unwanted.

mod reading;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use outbox_core::codec;
use outbox_core::message::{Message, MessageId};
use outbox_core::publisher::{FailureClass, PublishError, Receipt};
use outbox_core::subscriber::{ConsumerSpec, ConsumerStanding, Incoming, StartAt, StreamFacts, StreamPolicy};
use time::OffsetDateTime;
use tokio::time::Instant;

use super::super::faults::{Faults, take_one};
use super::consumer::Consumer;
use super::entry::Entry;

const SOURCE: &str = "memory";

pub(super) const DEFAULT_SUBJECTS: &str = "events.";

/// Default limit of nats-server for payload and headers together.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct State {
    log: BTreeMap<u64, Entry>,
    last_stream_sequence: u64,
    started: (Instant, OffsetDateTime),
    ids: HashMap<MessageId, u64>,
    consumers: HashMap<String, Consumer>,
    generations: u64,
    pub(crate) faults: Faults,
    pub(super) retention: Option<Duration>,
    pub(super) latency: Duration,
    pub(super) prefetches: bool,
    pub(super) publishes: u64,
}

#[derive(Debug)]
pub(super) enum Next {
    Delivery(Incoming),
    Wait(Option<Instant>),
}

impl Default for State {
    fn default() -> Self {
        Self {
            log: BTreeMap::new(),
            last_stream_sequence: 0,
            started: (Instant::now(), time::macros::datetime!(2026-01-01 00:00 UTC)),
            ids: HashMap::new(),
            consumers: HashMap::new(),
            generations: 0,
            faults: Faults::default(),
            retention: None,
            latency: Duration::ZERO,
            prefetches: false,
            publishes: 0,
        }
    }
}

impl State {
    pub(super) fn log(&self) -> impl Iterator<Item = &Entry> {
        self.log.values()
    }

    pub(super) fn now(&self) -> OffsetDateTime {
        let (instant, time) = self.started;
        time + instant.elapsed()
    }

    pub(super) fn reachable(&self) -> Result<(), PublishError> {
        if self.faults.down {
            let context = "injected fault: the broker is down";
            return Err(PublishError::new(FailureClass::Unknown, context));
        }
        Ok(())
    }

    pub(super) fn publish(&mut self, message: &Message) -> Result<Receipt, PublishError> {
        self.publishes += 1;
        let fail = |class, context: &str| Err(PublishError::new(class, context));
        if size_bytes(message) > MESSAGE_BYTES_MAX {
            return fail(FailureClass::Permanent, "message is larger than the broker takes");
        }
        if let Some(class) = self.faults.refusal(message) {
            return fail(class, "injected fault: the broker refused the message");
        }
        let receipt = self.store(message);
        if take_one(&mut self.faults.lose_acks) {
            return fail(FailureClass::Unknown, "injected fault: the confirmation was lost");
        }
        Ok(receipt)
    }

    pub(crate) fn store(&mut self, message: &Message) -> Receipt {
        if let Some(&stream_sequence) = self.ids.get(&message.id) {
            return Receipt {
                stream_sequence,
                duplicate: true,
            };
        }
        let subject = message.subject.clone();
        let subject = subject.unwrap_or_else(|| default_subject(message));
        let (headers, payload) = codec::encode(message, SOURCE).received();
        let stream_sequence = self.append(subject, headers, payload, Some(message.id));
        self.ids.insert(message.id, stream_sequence);
        Receipt {
            stream_sequence,
            duplicate: false,
        }
    }

    fn append(
        &mut self,
        subject: String,
        headers: Vec<(String, String)>,
        payload: Bytes,
        message_id: Option<MessageId>,
    ) -> u64 {
        self.last_stream_sequence += 1;
        let stream_sequence = self.last_stream_sequence;
        let is_type = |name: &str| name.eq_ignore_ascii_case("ce-type");
        let event_type = headers.iter().find(|(name, _)| is_type(name));
        let event_type = event_type.map(|(_, value)| value.clone());
        let entry = Entry {
            stream_sequence,
            subject,
            headers,
            payload,
            event_type,
            message_id,
            stored_at: self.now(),
        };
        self.log.insert(stream_sequence, entry);
        stream_sequence
    }

    pub(super) fn inject(&mut self, subject: String, headers: Vec<(String, String)>, payload: Bytes) -> u64 {
        let message = codec::decode(&headers, payload.clone());
        let message_id = message.ok().map(|message| message.id);
        self.append(subject, headers, payload, message_id)
    }

    pub(crate) fn tail(&self, count: usize) -> HashSet<u64> {
        self.log.keys().rev().take(count).copied().collect()
    }

    pub(crate) fn stream_sequences(&self, ids: &[MessageId]) -> HashSet<u64> {
        self.log()
            .filter(|entry| entry.message_id.is_some_and(|id| ids.contains(&id)))
            .map(|entry| entry.stream_sequence)
            .collect()
    }

    /// Deletes entries. A deletion keeps the message ids; a loss clears them.
    pub(crate) fn lose(&mut self, stream_sequences: &HashSet<u64>, forgets_ids: bool) {
        self.log
            .retain(|stream_sequence, _| !stream_sequences.contains(stream_sequence));
        self.ids
            .retain(|_, stream_sequence| !forgets_ids || !stream_sequences.contains(stream_sequence));
        let is_left = |stream_sequence: u64| !stream_sequences.contains(&stream_sequence);
        for consumer in self.consumers.values_mut() {
            consumer
                .unacked
                .retain(|stream_sequence, _| is_left(*stream_sequence));
            consumer
                .copies
                .retain(|(stream_sequence, _)| is_left(*stream_sequence));
        }
    }

    pub(crate) fn forget_ids(&mut self) {
        self.ids.clear();
    }

    pub(super) fn subscribe(&mut self, spec: &ConsumerSpec) -> u64 {
        let start = self.start(spec.start_at);
        let consumer = self.consumers.entry(spec.name.clone()).or_insert_with(|| {
            self.generations += 1;
            Consumer::new(self.generations, start)
        });
        // Event types are only added, because another version of the program may still handle the
        // earlier ones.
        let events = spec.events.iter();
        consumer
            .event_types
            .extend(events.clone().map(|event| event.event_type()));
        let whole = events.filter(|_| spec.whole_aggregates);
        consumer
            .aggregates
            .extend(whole.map(|event| format!("{}.", event.aggregate)));
        consumer.in_flight_max = spec.in_flight_max;
        consumer.ack_wait = spec.ack_wait;
        consumer.generation
    }

    fn start(&self, start_at: StartAt) -> u64 {
        let since = match start_at {
            StartAt::New => None,
            StartAt::Time(time) => self.log().find(|entry| entry.stored_at >= time),
            _ => return 1,
        };
        since.map_or(self.last_stream_sequence + 1, |entry| entry.stream_sequence)
    }

    pub(super) fn facts(&self) -> StreamFacts {
        StreamFacts {
            retention: self.retention,
            policy: StreamPolicy::Limits,
            duplicate_window: None,
            first_stream_sequence: self.log.keys().next().copied(),
            last_stream_sequence: self.last_stream_sequence,
            messages: self.log.len() as u64,
        }
    }

    pub(super) fn delete_consumer(&mut self, name: &str) {
        self.consumers.remove(name);
    }

    pub(super) fn standing(&self, name: &str) -> Option<ConsumerStanding> {
        let consumer = self.consumers.get(name)?;
        let oldest = consumer.oldest(&self.log);
        let unacknowledged = consumer.unacked.len() as u64;
        Some(ConsumerStanding {
            undelivered: consumer.backlog(&self.log) - unacknowledged,
            unacknowledged,
            max_unacknowledged: Some(consumer.in_flight_max as u64),
            oldest_age: oldest
                .and_then(|oldest| self.log.get(&oldest))
                .map(|entry| (self.now() - entry.stored_at).try_into().unwrap_or_default()),
            floor: consumer
                .unacked
                .keys()
                .next()
                .map_or(consumer.cursor, |first| first - 1),
            is_receiving: consumer.waiting > 0,
        })
    }

    pub(super) fn waits(&mut self, name: &str, generation: u64, begins: bool) {
        let consumer = self.consumers.get_mut(name);
        if let Some(consumer) = consumer.filter(|consumer| consumer.generation == generation) {
            consumer.waiting = match begins {
                true => consumer.waiting + 1,
                false => consumer.waiting.saturating_sub(1),
            };
        }
    }

    pub(super) fn consumer(&self, name: &str) -> Option<&Consumer> {
        self.consumers.get(name)
    }

    pub(super) fn is_asked_for(&self, name: &str, stream_sequence: u64) -> bool {
        let entry = self.log.get(&stream_sequence);
        let event_type = entry.and_then(|entry| entry.event_type.as_ref());
        match (self.consumers.get(name), event_type) {
            (Some(consumer), Some(event_type)) => consumer.asks_for(event_type),
            _ => true,
        }
    }

    /// Whether an entry has predecessors for this consumer. True for an entry without an aggregate.
    pub(super) fn has_predecessors(&self, name: &str, stream_sequence: u64) -> bool {
        let start = self.consumers.get(name).map_or(0, |consumer| consumer.start);
        let header = |entry: &Entry, wanted: &str| {
            let mut headers = entry.headers.iter();
            headers
                .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
                .map(|(_, value)| value.clone())
        };
        let aggregate_of = |entry: &Entry| {
            let names = [header(entry, "ce-aggregatetype"), header(entry, "ce-subject")];
            names.iter().all(Option::is_some).then_some(names)
        };
        match self.log.get(&stream_sequence).map(aggregate_of) {
            Some(Some(own)) => self
                .log
                .range(start.min(stream_sequence)..stream_sequence)
                .any(|(_, entry)| aggregate_of(entry).as_ref() == Some(&own)),
            _ => true,
        }
    }

    pub(super) fn is_idle(&self, name: &str) -> bool {
        let is_idle = |c: &Consumer| c.copies.is_empty() && c.backlog(&self.log) == 0;
        self.consumers.get(name).is_some_and(is_idle)
    }

    pub(super) fn backlog(&self, name: &str) -> u64 {
        let consumer = self.consumers.get(name);
        consumer.map_or(0, |consumer| consumer.backlog(&self.log))
    }

    /// Returns the next delivery of a consumer: first a copy requested by the test, then a due
    /// redelivery, then a new message.
    pub(super) fn next(&mut self, name: &str) -> Next {
        let Some(consumer) = self.consumers.get_mut(name) else {
            return Next::Wait(None);
        };
        let now = Instant::now();
        let (stream_sequence, count) = if let Some(copy) = consumer.copies.pop_front() {
            copy
        } else if let Some((stream_sequence, count)) = consumer.first_due(now) {
            (stream_sequence, count + 1)
        } else if let Some(stream_sequence) = consumer.advance(&self.log) {
            consumer.unacked.insert(stream_sequence, (1, now));
            if take_one(&mut self.faults.duplicate_deliveries) {
                consumer.copies.push_back((stream_sequence, 2));
            }
            (stream_sequence, 1)
        } else {
            return Next::Wait(consumer.unacked.values().map(|(_, next)| *next).min());
        };
        // A copy may belong to an acknowledged message.
        if let Some(unacked) = consumer.unacked.get_mut(&stream_sequence) {
            *unacked = (count, now + consumer.ack_wait);
        }
        consumer.deliveries += 1;
        let Some(entry) = self.log.get(&stream_sequence) else {
            return Next::Wait(None);
        };
        let incoming = Incoming {
            subject: entry.subject.clone(),
            headers: entry.headers.clone(),
            payload: entry.payload.clone(),
            delivery_count: count,
            stream_sequence,
        };
        Next::Delivery(incoming)
    }

    /// Acknowledges a message, also after its redelivery to another process, as a server does.
    pub(super) fn ack(&mut self, name: &str, stream_sequence: u64) {
        if take_one(&mut self.faults.lose_consumer_acks) {
            return;
        }
        if let Some(consumer) = self.consumers.get_mut(name) {
            consumer.unacked.remove(&stream_sequence);
        }
    }

    pub(super) fn postpone(&mut self, name: &str, stream_sequence: u64, delay: Option<Duration>) {
        let Some(consumer) = self.consumers.get_mut(name) else {
            return;
        };
        let delay = delay.unwrap_or(consumer.ack_wait);
        if let Some((_, next)) = consumer.unacked.get_mut(&stream_sequence) {
            *next = Instant::now() + delay;
        }
    }
}

pub(super) fn default_subject(message: &Message) -> String {
    let Message { aggregate, .. } = message;
    let (aggregate_type, id) = (&aggregate.aggregate_type, &aggregate.id);
    format!("{DEFAULT_SUBJECTS}{aggregate_type}.{id}.{}", message.event_name())
}

fn size_bytes(message: &Message) -> usize {
    const ENVELOPE_BYTES: usize = 512;
    message.payload.len() + message.headers.size_bytes() + ENVELOPE_BYTES
}
