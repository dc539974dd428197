//! Counts all facts in one pass, event by event.
//!
//! Invariant: every ghost (stream message without a row) or hole (missing sequence) in the report
//! was looked up in the outbox again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use outbox::core::{Aggregate, MessageId, OutboxReader, StoreError, StoredMessage, StreamExtent};
use time::OffsetDateTime;
use uuid::Uuid;

use super::fact::{Fact, Kind, Numbered};
use super::read::{CLOCKS_APART, DEAD, FAILED, HANDLED, HANDLED_LATER, LOGGED, PENDING, PUBLISHED};
use super::report::{Findings, Holes, Proof};
use super::{ConsumerFloor, ProofError, ProofRequest};
use crate::admin::holes::{self, Hole};

/// Maximum aggregates whose end is searched for missing sequences; each aggregate needs two
/// statements.
const ENDS_MAX: u32 = 10_000;

#[derive(Debug, Default)]
struct Event {
    id: u128,
    row: Option<Fact>,
    copy: Option<Fact>,
    first: Option<Fact>,
    places: u64,
    lost: u64,
    expired: u64,
    logged_absent: u64,
    replayed: u64,
    outcomes: BTreeMap<u64, u8>,
    message: Option<(Fact, u64)>,
}

impl Event {
    fn add(&mut self, fact: &Fact, horizon: Option<i64>) {
        match fact.kind {
            Kind::Row => {
                self.end_message(horizon);
                self.message = Some((*fact, 0));
                match fact.event == fact.message {
                    true => self.row = Some(*fact),
                    false => {
                        self.copy = Some(*fact);
                        self.replayed += 1;
                    }
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
                if rank(fact.status) > rank(*outcome) {
                    *outcome = fact.status;
                }
            }
        }
    }

    /// The stream may have removed all messages stored before `horizon`.
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

    fn is_altered(&self) -> bool {
        match (&self.row, &self.first) {
            (Some(row), Some(first)) => row.aggregate != first.aggregate || row.sequence != first.sequence,
            _ => false,
        }
    }
}

fn rank(outcome: u8) -> u8 {
    match outcome {
        FAILED => 0,
        DEAD => 1,
        HANDLED_LATER => 2,
        _ => 3,
    }
}

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
    senders: BTreeMap<u64, Sender>,
    /// By consumer and event type: acknowledged events without an inbox row, after the last event
    /// with a row of a first attempt.
    kept: HashMap<(usize, u64), Findings>,
    numbered: Vec<Numbered>,
}

pub(super) async fn weigh<S: OutboxReader>(
    store: &S,
    facts: &[Fact],
    extent: StreamExtent,
    floors: &[ConsumerFloor],
    request: &ProofRequest,
) -> Result<Proof, ProofError> {
    let consumers: Vec<String> = floors.iter().map(|floor| floor.consumer.clone()).collect();
    let mut proof = Proof::new(request.since, request.until, &consumers);
    proof.note_extent(extent);
    proof.facts = facts.len() as u64;
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
        kept: HashMap::new(),
        numbered: Vec::new(),
    };
    for of_event in facts.chunk_by(|one, other| one.event == other.event) {
        let mut event = Event::default();
        for fact in of_event {
            event.id = fact.event;
            event.add(fact, horizon);
        }
        weighing.end(event).await?;
    }
    weighing.finish().await
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
            (Some(row), _) => self.end_committed(&event, row),
            (None, Some(first)) if event.copy.is_none() => self.end_unknown(&event, first).await?,
            _ => {
                if let Some(copy) = event.copy {
                    self.number(event.id, copy, None, false);
                }
            }
        }
        Ok(())
    }

    fn end_committed(&mut self, event: &Event, row: Fact) {
        let outbox = &mut self.proof.outbox;
        outbox.committed += 1;
        match row.status {
            PENDING => outbox.unpublished += 1,
            PUBLISHED => outbox.published += 1,
            DEAD => outbox.dead_letters += 1,
            _ => outbox.logged += 1,
        }
        let is_altered = event.is_altered();
        let first = event.first.filter(|_| !is_altered);
        self.number(event.id, row, first, row.is_kept);
        if let Some(first) = event.first {
            let sender = self.senders.entry(first.label).or_default();
            self.proof.stream.events += 1;
            self.proof.stream.copies += event.places - 1;
            if is_altered {
                let position = Some(first.position);
                self.proof.ghosts.add(event.id, position, self.request.shown);
            } else {
                sender.is_ours = true;
            }
        }
        self.effects(event, row);
    }

    async fn end_unknown(&mut self, event: &Event, first: Fact) -> Result<(), ProofError> {
        let shown = self.request.shown;
        let sender = self.senders.entry(first.label).or_default();
        if first.status == 0 {
            sender.unrecorded += event.places;
            self.number(event.id, first, Some(first), false);
            return Ok(());
        }
        // The transaction of this stream message may have committed after the outbox was read.
        if sender.ghosts.first.len() < shown {
            let id = MessageId::from(Uuid::from_u128(event.id));
            if self.store.find(id).await?.is_some() {
                return Ok(());
            }
        }
        sender.ghosts.add(event.id, Some(first.position), shown);
        let of_ghost = Fact { position: 0, ..first };
        self.number(event.id, first, Some(of_ghost), false);
        Ok(())
    }

    fn number(&mut self, event: u128, fact: Fact, first: Option<Fact>, is_kept: bool) {
        if fact.sequence == 0 {
            return;
        }
        let numbered = Numbered {
            aggregate: fact.aggregate,
            sequence: fact.sequence,
            label: first.map(|first| first.label),
            position: first.map_or(0, |first| first.position),
            event,
            is_kept,
        };
        self.numbered.push(numbered);
    }

    fn effects(&mut self, event: &Event, row: Fact) {
        let consumers = self.floors.iter().zip(&mut self.proof.consumers);
        for (label, (floor, books)) in consumers.enumerate() {
            match event.outcomes.get(&(label as u64)) {
                Some(&HANDLED) => {
                    books.handled += 1;
                    let without = self.kept.insert((label, row.event_type), Findings::default());
                    books
                        .missing
                        .extend(without.unwrap_or_default(), self.request.shown);
                }
                Some(&HANDLED_LATER) => books.handled += 1,
                Some(&DEAD) => books.dead_letters += 1,
                Some(_) => books.failed += 1,
                None => {
                    let Some(first) = event.first else {
                        continue;
                    };
                    if first.position > floor.floor {
                        books.open += 1;
                    } else if let Some(without) = self.kept.get_mut(&(label, row.event_type)) {
                        without.add(event.id, Some(first.position), self.request.shown);
                    } else {
                        books.passed += 1;
                    }
                }
            }
        }
    }

    async fn finish(mut self) -> Result<Proof, ProofError> {
        let shown = self.request.shown;
        for ((label, _), without) in self.kept {
            if let Some(books) = self.proof.consumers.get_mut(label) {
                books.passed += without.count;
            }
        }
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
        self.numbered.sort_unstable_by_key(Numbered::order);
        // Higher sequences come first. The loop keeps the earliest stream message per sender and
        // the lowest sequence so far.
        let (mut earliest, mut above, mut ends) = (BTreeMap::new(), None::<Numbered>, 0);
        for numbered in self.numbered {
            if numbered.label.is_some_and(|label| !ours.contains(&label)) {
                continue;
            }
            if above.is_some_and(|above| above.aggregate != numbered.aggregate) {
                earliest.clear();
                above = None;
            }
            if numbered.position > 0 {
                let earliest = earliest.entry(numbered.label).or_insert(numbered.position);
                if numbered.position > *earliest {
                    let position = Some(numbered.position);
                    self.proof.inversions.add(numbered.event, position, shown);
                }
                *earliest = numbered.position.min(*earliest);
            }
            let (holes, span) = (&mut self.proof.holes, (self.request.until, shown));
            match above.filter(|_| numbered.is_kept) {
                Some(above) if above.sequence - numbered.sequence > 1 => {
                    hole(self.store, holes, (&numbered, &above), span).await?;
                }
                None if numbered.is_kept && ends < ENDS_MAX => {
                    ends += 1;
                    hole_at_end(self.store, holes, &numbered, span).await?;
                }
                _ => {}
            }
            above = Some(numbered);
        }
        self.proof.conclude(self.request.stream.as_deref());
        Ok(self.proof)
    }
}

/// Queries the sequences of a hole again, because transactions may have committed since the first
/// read.
async fn hole(
    store: &impl OutboxReader,
    holes: &mut Holes,
    (below, above): (&Numbered, &Numbered),
    (until, shown): (OffsetDateTime, usize),
) -> Result<(), ProofError> {
    let between = above.sequence - below.sequence - 1;
    if holes.first.len() >= shown {
        holes.count = holes.count.saturating_add(between);
        return Ok(());
    }
    let id = |numbered: &Numbered| MessageId::from(Uuid::from_u128(numbered.event));
    // A purge may have deleted the row before the hole, and in that case also rows after it.
    let Some(found) = store.find(id(below)).await? else {
        return Ok(());
    };
    let end = store.find(id(above)).await?;
    let end = end.map_or(until, |end| end.stored.created_at);
    let below = found.stored;
    let aggregate = below.aggregate.clone();
    let end = StoredMessage {
        sequence: Some(above.sequence),
        created_at: end,
        ..below.clone()
    };
    let numbers = below.sequence.unwrap_or_default()..above.sequence;
    let confirmed = holes::of_rows(store, &aggregate, &[below, end], None).await;
    add(holes, &aggregate, confirmed, (numbers, shown));
    Ok(())
}

async fn hole_at_end(
    store: &impl OutboxReader,
    holes: &mut Holes,
    last: &Numbered,
    (until, shown): (OffsetDateTime, usize),
) -> Result<(), ProofError> {
    let id = MessageId::from(Uuid::from_u128(last.event));
    let Some(found) = store.find(id).await? else {
        return Ok(());
    };
    let row = found.stored;
    let head = store.head(&row.aggregate).await?;
    let Some(head) = head.filter(|head| head.last_sequence > last.sequence && head.recorded_at < until)
    else {
        return Ok(());
    };
    if holes.first.len() >= shown {
        holes.count = holes.count.saturating_add(head.last_sequence - last.sequence);
        return Ok(());
    }
    let (aggregate, numbers) = (row.aggregate.clone(), last.sequence..head.last_sequence + 1);
    let confirmed = holes::of_rows(store, &aggregate, &[row], Some(&head)).await;
    add(holes, &aggregate, confirmed, (numbers, shown));
    Ok(())
}

/// Adds missing sequences to the report. If the second query failed or is absent, they count as
/// unknown.
fn add(
    holes: &mut Holes,
    aggregate: &Aggregate,
    confirmed: Result<Option<Vec<Hole>>, StoreError>,
    (numbers, shown): (Range<u64>, usize),
) {
    let Ok(Some(confirmed)) = confirmed else {
        let between = numbers.end - numbers.start - 1;
        holes.unknown = holes.unknown.saturating_add(between);
        return;
    };
    for hole in confirmed {
        if numbers.contains(&hole.first) && holes.first.len() < shown {
            holes.add(aggregate, hole);
        }
    }
}
