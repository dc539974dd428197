//! Goes through all facts once, event by event, and counts.
//!
//! Invariants: what is in memory is one event, the consumers' counts, and the first of each finding. A ghost that is counted by name was looked for in the outbox
//! once more.

use std::collections::{BTreeMap, HashSet};

use outbox_core::{MessageId, OutboxReader, StreamExtent};
use uuid::Uuid;

use super::disk::Disk;
use super::fact::{Fact, Kind, NUMBERED_BYTES, Numbered};
use super::read::{CLOCKS_APART, DEAD, FAILED, Facts, HANDLED, LOGGED, PENDING, PUBLISHED};
use super::report::{Findings, Proof};
use super::sorter::Sorter;
use super::{ConsumerFloor, ProofError, ProofRequest, ProofStage};

/// All that is known of an event.
#[derive(Debug, Default)]
struct Event {
    id: u128,
    /// The row of the event itself, not of a copy.
    row: Option<Fact>,
    /// Whether there is a row of any kind.
    has_rows: bool,
    /// The first place on the stream.
    first: Option<Fact>,
    places: u64,
    /// Published messages that are not on the stream.
    lost: u64,
    expired: u64,
    logged_absent: u64,
    replayed: u64,
    /// The best outcome at each consumer.
    outcomes: BTreeMap<u16, u8>,
    /// The message that is looked at, if it has a row, and its places.
    message: Option<(Fact, u64)>,
}

impl Event {
    fn add(&mut self, fact: &Fact, horizon: Option<i64>) {
        match fact.kind {
            Kind::Row => {
                self.end_message(horizon);
                self.message = Some((*fact, 0));
                self.has_rows = true;
                match fact.event == fact.message {
                    true => self.row = Some(*fact),
                    false => self.replayed += 1,
                }
            }
            Kind::Place => {
                self.places += 1;
                if let Some((row, places)) = &mut self.message
                    && row.message == fact.message
                {
                    *places += 1;
                }
                if self.first.is_none_or(|first| fact.position < first.position) {
                    self.first = Some(*fact);
                }
            }
            Kind::Outcome => {
                let outcome = self.outcomes.entry(fact.label).or_insert(fact.status);
                // Handled, whatever else there is; then a dead letter.
                if fact.status == HANDLED || *outcome == FAILED {
                    *outcome = fact.status;
                }
            }
        }
    }

    /// `horizon` is the time until which the stream may have let go what it stored.
    fn end_message(&mut self, horizon: Option<i64>) {
        let Some((row, 0)) = self.message.take() else {
            return;
        };
        match row.status {
            PUBLISHED if horizon.is_some_and(|horizon| row.micros < horizon) => self.expired += 1,
            PUBLISHED => self.lost += 1,
            LOGGED => self.logged_absent += 1,
            _ => {}
        }
    }

    /// Whether the stream says what the row says.
    fn is_altered(&self) -> bool {
        match (&self.row, &self.first) {
            (Some(row), Some(first)) => row.aggregate != first.aggregate || row.sequence != first.sequence,
            _ => false,
        }
    }
}

/// What is known of the messages of a sender that have no row.
#[derive(Debug, Default)]
struct Sender {
    is_ours: bool,
    ghosts: Findings,
    unrecorded: u64,
}

struct Weighing<'a, S> {
    store: &'a S,
    request: &'a ProofRequest,
    floors: &'a [ConsumerFloor],
    horizon: Option<i64>,
    proof: Proof,
    senders: BTreeMap<u16, Sender>,
    /// Consumers and event types with a row.
    kept: HashSet<(u16, u16)>,
    numbered: Sorter<NUMBERED_BYTES>,
}

pub(super) async fn weigh<S: OutboxReader>(
    store: &S,
    facts: Facts,
    extent: StreamExtent,
    floors: &[ConsumerFloor],
    (request, disk): (&ProofRequest, &Disk),
    progress: &mut (dyn FnMut(ProofStage, u64) + Send),
) -> Result<Proof, ProofError> {
    let consumers: Vec<String> = floors.iter().map(|floor| floor.consumer.clone()).collect();
    let mut proof = Proof::new(request.since, request.until, &consumers);
    proof.note_extent(extent);
    proof.facts = facts.count;
    proof.facts_held_max = facts.sorter.held_max() as u64;
    let first = extent
        .first_stored_at
        .filter(|_| extent.first_stream_sequence > 1);
    let horizon = first.map(|first| {
        let micros = (first + CLOCKS_APART).unix_timestamp_nanos().div_euclid(1000);
        i64::try_from(micros).unwrap_or(i64::MAX)
    });
    let mut weighing = Weighing {
        store,
        request,
        floors,
        horizon,
        proof,
        senders: BTreeMap::new(),
        kept: HashSet::new(),
        numbered: Sorter::new(request.numbered_max(), disk),
    };
    let mut merge = facts.sorter.sorted()?;
    let (mut event, mut seen) = (None::<Event>, 0_u64);
    while let Some(record) = merge.next()? {
        seen += 1;
        if seen.is_multiple_of(10_000) {
            progress(ProofStage::Balance, seen);
        }
        let fact = Fact::decode(&record);
        if let Some(ended) = event.take_if(|event| event.id != fact.event) {
            weighing.end(ended).await?;
        }
        let event = event.get_or_insert_with(|| Event {
            id: fact.event,
            ..Event::default()
        });
        event.add(&fact, horizon);
    }
    if let Some(ended) = event {
        weighing.end(ended).await?;
    }
    weighing.finish()
}

impl<S: OutboxReader> Weighing<'_, S> {
    async fn end(&mut self, mut event: Event) -> Result<(), ProofError> {
        event.end_message(self.horizon);
        let proof = &mut self.proof;
        let position = event.first.map(|first| first.position);
        for _ in 0..event.lost {
            proof.lost.add(event.id, position, self.request.shown);
        }
        proof.stream.expired += event.expired;
        proof.stream.logged_absent += event.logged_absent;
        proof.outbox.replayed += event.replayed;
        match (event.row, event.first) {
            (Some(row), _) => self.end_committed(&event, row)?,
            (None, Some(first)) if !event.has_rows => self.end_unknown(&event, first).await?,
            // A copy whose original is no longer kept, or an outcome of another span.
            _ => {}
        }
        Ok(())
    }

    fn end_committed(&mut self, event: &Event, row: Fact) -> Result<(), ProofError> {
        let outbox = &mut self.proof.outbox;
        outbox.committed += 1;
        match row.status {
            PENDING => outbox.unpublished += 1,
            PUBLISHED => outbox.published += 1,
            DEAD => outbox.dead_letters += 1,
            _ => outbox.logged += 1,
        }
        if let Some(first) = event.first {
            let sender = self.senders.entry(first.label).or_default();
            self.proof.stream.events += 1;
            self.proof.stream.copies += event.places - 1;
            // The outbox knows the event, so the message is not that of another outbox.
            if event.is_altered() {
                let position = Some(first.position);
                self.proof.ghosts.add(event.id, position, self.request.shown);
            } else {
                sender.is_ours = true;
                self.number(event.id, first)?;
            }
        }
        self.effects(event, row);
        Ok(())
    }

    /// A message on the stream without a row.
    async fn end_unknown(&mut self, event: &Event, first: Fact) -> Result<(), ProofError> {
        let shown = self.request.shown;
        let sender = self.senders.entry(first.label).or_default();
        if first.status == 0 {
            sender.unrecorded += event.places;
            return self.number(event.id, first);
        }
        // Those that are named are looked for once more: their transactions may have been committed since.
        if sender.ghosts.first.len() < shown {
            let id = MessageId::from(Uuid::from_u128(event.id));
            if self.store.find(id).await?.is_some() {
                return Ok(());
            }
        }
        sender.ghosts.add(event.id, Some(first.position), shown);
        Ok(())
    }

    fn number(&mut self, event: u128, first: Fact) -> Result<(), ProofError> {
        if first.sequence == 0 {
            return Ok(());
        }
        let numbered = Numbered {
            label: first.label,
            aggregate: first.aggregate,
            sequence: first.sequence,
            position: first.position,
            event,
        };
        self.numbered.push(numbered.encode())
    }

    fn effects(&mut self, event: &Event, row: Fact) {
        for (label, (floor, books)) in (0_u16..).zip(self.floors.iter().zip(&mut self.proof.consumers)) {
            match event.outcomes.get(&label) {
                Some(&HANDLED) => {
                    books.handled += 1;
                    self.kept.insert((label, row.event_type));
                }
                Some(&DEAD) => books.dead_letters += 1,
                Some(_) => books.failed += 1,
                None => {
                    let Some(first) = event.first else {
                        continue;
                    };
                    if first.position > floor.floor {
                        books.open += 1;
                    } else if self.kept.contains(&(label, row.event_type)) {
                        books
                            .missing
                            .add(event.id, Some(first.position), self.request.shown);
                    } else {
                        books.passed += 1;
                    }
                }
            }
        }
    }

    fn finish(mut self) -> Result<Proof, ProofError> {
        let shown = self.request.shown;
        let mut ours = HashSet::new();
        for (label, sender) in self.senders {
            if sender.is_ours {
                ours.insert(label);
                self.proof.ghosts.extend(sender.ghosts, shown);
                self.proof.stream.unrecorded += sender.unrecorded;
            } else {
                self.proof.stream.of_others += sender.ghosts.count + sender.unrecorded;
            }
        }
        let held = self.numbered.held_max() as u64;
        self.proof.facts_held_max = self.proof.facts_held_max.max(held);
        let mut merge = self.numbered.sorted()?;
        let mut earliest = None::<Numbered>;
        while let Some(record) = merge.next()? {
            let numbered = Numbered::decode(&record);
            if !ours.contains(&numbered.label) {
                continue;
            }
            let of = |one: &Numbered| (one.label, one.aggregate);
            // The first place of all larger numbers: they come before the smaller ones.
            match earliest.filter(|earliest| of(earliest) == of(&numbered)) {
                Some(earliest) if numbered.position > earliest.position => {
                    let position = Some(numbered.position);
                    self.proof.inversions.add(numbered.event, position, shown);
                }
                _ => earliest = Some(numbered),
            }
        }
        self.proof.conclude();
        Ok(self.proof)
    }
}
