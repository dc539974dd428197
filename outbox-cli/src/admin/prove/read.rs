//! Reads outbox, stream and inboxes into facts.
//!
//! Invariant: outbox, stream and inboxes are read in this order, so concurrent changes are seen
//! late, never early.

use std::num::NonZeroU32;

use outbox::core::{EventId, MessageStatus, OutboxReader, StreamExtent, StreamReader, StreamedMessage};
use outbox::inbox::{DatabaseAnswer, EventOutcome, EventOutcomes};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::fact::{Fact, Kind, hash, hash_name};
use super::{ConsumerFloor, ProofError, ProofRequest};

pub(super) const CLOCKS_APART: Duration = Duration::HOUR;

const PAGE: NonZeroU32 = NonZeroU32::new(1000).unwrap();

pub(super) struct Reading<'a> {
    request: &'a ProofRequest,
    facts: Vec<Fact>,
    /// Whether a writer supplied ids other than UUID v7.
    has_foreign_ids: bool,
}

fn micros(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos().div_euclid(1000)).unwrap_or(i64::MAX)
}

fn id_at(time: OffsetDateTime) -> EventId {
    let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
    let millis = u64::try_from(millis).unwrap_or_default().min((1 << 48) - 1);
    EventId::from(Uuid::from_u64_pair(millis << 16, 0))
}

pub(super) const PENDING: u8 = 0;
pub(super) const PUBLISHED: u8 = 1;
pub(super) const DEAD: u8 = 2;
pub(super) const LOGGED: u8 = 3;

pub(super) const FAILED: u8 = 0;
pub(super) const HANDLED: u8 = 1;
/// Status handled, in an inbox row written only after a failure or redelivery.
pub(super) const HANDLED_LATER: u8 = 4;

impl<'a> Reading<'a> {
    pub(super) fn new(request: &'a ProofRequest) -> Self {
        Self {
            request,
            facts: Vec::new(),
            has_foreign_ids: false,
        }
    }

    fn push(&mut self, fact: Fact) -> Result<(), ProofError> {
        let max = self.request.facts_max;
        if self.facts.len() == max {
            return Err(ProofError::TooMany { max });
        }
        self.facts.push(fact);
        Ok(())
    }

    pub(super) async fn outbox(&mut self, store: &impl OutboxReader) -> Result<(), ProofError> {
        let (since, until) = (self.request.since, self.request.until);
        let mut after = None;
        loop {
            let page = store.recorded_between(since, until, after, PAGE).await?;
            for row in &page {
                self.has_foreign_ids |= row.event_id.as_uuid().get_version_num() != 7;
                self.push(Fact {
                    aggregate: hash(&row.aggregate),
                    sequence: row.sequence.unwrap_or_default(),
                    event_type: hash_name(&row.event_type),
                    status: match row.status {
                        MessageStatus::Pending | MessageStatus::Waiting => PENDING,
                        MessageStatus::Published => PUBLISHED,
                        MessageStatus::Dead => DEAD,
                        MessageStatus::Logged => LOGGED,
                    },
                    micros: row.published_at.map(micros).unwrap_or_default(),
                    is_kept: self.request.rows_kept.keeps(row.created_at - CLOCKS_APART),
                    ..Fact::new(
                        Kind::Row,
                        row.event_id.as_uuid().as_u128(),
                        row.id.as_uuid().as_u128(),
                    )
                })?;
            }
            after = page.last().map(|row| row.id);
            if page.len() < PAGE.get() as usize {
                return Ok(());
            }
        }
    }

    pub(super) async fn stream(&mut self, stream: &impl StreamReader) -> Result<StreamExtent, ProofError> {
        let from = self.request.since - CLOCKS_APART;
        let mut failed = None;
        let see = |message: StreamedMessage| match self.place(message) {
            Ok(()) => true,
            Err(error) => {
                failed = Some(error);
                false
            }
        };
        let extent = stream.read(from, see).await?;
        match failed {
            Some(error) => Err(error),
            None => Ok(extent),
        }
    }

    fn place(&mut self, message: StreamedMessage) -> Result<(), ProofError> {
        let ProofRequest {
            since,
            until,
            rows_kept,
            ..
        } = *self.request;
        let recorded_at = message.recorded_at;
        // Databases store microseconds.
        let is_within = (micros(since)..micros(until)).contains(&micros(recorded_at));
        if !is_within {
            return Ok(());
        }
        let is_kept = rows_kept.keeps(recorded_at);
        let fact = Fact {
            position: message.stream_sequence,
            aggregate: hash(&message.aggregate),
            sequence: message.sequence.unwrap_or_default(),
            label: hash_name((&message.source, &message.aggregate.aggregate_type)),
            event_type: hash_name(&message.event_type),
            status: u8::from(is_kept),
            micros: micros(message.stored_at),
            ..Fact::new(
                Kind::Place,
                message.event_id.as_uuid().as_u128(),
                message.id.as_uuid().as_u128(),
            )
        };
        self.push(fact)
    }

    /// Returns whether any database has inbox tables.
    pub(super) async fn inboxes(
        &mut self,
        inboxes: &[EventOutcomes],
        floors: &[ConsumerFloor],
    ) -> Result<bool, ProofError> {
        let mut has_inbox = false;
        'inboxes: for inbox in inboxes {
            for (label, floor) in (0..).zip(floors) {
                let consumer = &floor.consumer;
                match self.inbox(inbox, consumer, label).await {
                    Ok(()) => has_inbox = true,
                    Err(ProofError::Inbox { source, .. })
                        if DatabaseAnswer::is_table_missing(&source, "inbox_messages") =>
                    {
                        continue 'inboxes;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(has_inbox)
    }

    async fn inbox(&mut self, inbox: &EventOutcomes, consumer: &str, label: u64) -> Result<(), ProofError> {
        let failed = |source| ProofError::Inbox {
            consumer: consumer.to_owned(),
            source,
        };
        let (mut after, last) = match self.has_foreign_ids {
            false => (
                id_at(self.request.since - CLOCKS_APART),
                id_at(self.request.until + CLOCKS_APART),
            ),
            true => (EventId::from(Uuid::nil()), EventId::from(Uuid::max())),
        };
        loop {
            let page = inbox
                .page(consumer, after, last, PAGE.get())
                .await
                .map_err(failed)?;
            for (event, outcome) in &page {
                let status = match outcome {
                    EventOutcome::Handled => HANDLED,
                    EventOutcome::HandledLater => HANDLED_LATER,
                    EventOutcome::Dead => DEAD,
                    _ => FAILED,
                };
                self.outcome(*event, label, status)?;
            }
            match page.last() {
                Some((event, _)) if page.len() == PAGE.get() as usize => after = *event,
                _ => break,
            }
        }
        let mut after = None;
        loop {
            let since = self.request.since - CLOCKS_APART;
            let page = inbox
                .dead_letters(consumer, since, after, PAGE.get())
                .await
                .map_err(failed)?;
            for (_, event) in &page {
                self.outcome(*event, label, DEAD)?;
            }
            match page.last() {
                Some((place, _)) if page.len() == PAGE.get() as usize => after = Some(*place),
                _ => return Ok(()),
            }
        }
    }

    fn outcome(&mut self, event: EventId, label: u64, status: u8) -> Result<(), ProofError> {
        self.push(Fact {
            label,
            status,
            ..Fact::new(Kind::Outcome, event.as_uuid().as_u128(), u128::MAX)
        })
    }

    pub(super) fn facts(mut self) -> Vec<Fact> {
        self.facts.sort_unstable();
        self.facts
    }
}
