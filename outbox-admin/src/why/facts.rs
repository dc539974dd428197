//! Reads the facts that decide why something does not arrive.
//!
//! Invariant: each read is bounded. The broker is asked about one message only: whether it takes it if it has failed, and where it is if the outbox says that it was
//! published.

use outbox_core::{
    Aggregate, AggregateHead, BlockedAggregate, ExpiredRelay, FoundMessage, LiveRelay, Message, MessageId,
    MessageStatus, OutboxReader, OwnerId, Selection, StoreError, StoredMessage,
};
use time::{Duration, OffsetDateTime};

use crate::holes::{self, Hole};
use crate::of_aggregate::{UNPUBLISHED_MAX, of_aggregate, unpublished};
use crate::pause::{PauseRow, pauses};
use crate::prove::RowsKept;
use crate::recheck::Refused;
use crate::relays::dead_letter;
use crate::why::Readers;

/// What was asked for.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    Message(MessageId),
    Aggregate(Aggregate),
}

/// Where a published message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Nobody had to ask.
    NotAsked,
    /// On the stream, with its stream sequence.
    OnStream(u64),
    /// Not on the stream.
    Gone,
    /// It could not be found out.
    Unknown(String),
}

/// What the broker would do with a message that has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Broker {
    /// Nobody had to ask.
    NotAsked,
    /// It would refuse it again.
    Refuses(Refused),
    /// Nothing shows that it would refuse it.
    Takes,
    /// It could not be asked.
    Silent(String),
}

#[derive(Debug)]
pub(super) struct Facts {
    pub(super) subject: Subject,
    /// The message to explain; `None` if the outbox holds none.
    pub(super) message: Option<FoundMessage>,
    /// The first message of its aggregate before it that is not published.
    pub(super) before: Option<FoundMessage>,
    pub(super) block: Option<BlockedAggregate>,
    /// The dead letter that halts the aggregate.
    pub(super) halting: Option<StoredMessage>,
    pub(super) head: Option<AggregateHead>,
    pub(super) relays: Vec<LiveRelay>,
    /// Read only if no relay is alive.
    pub(super) expired: Vec<ExpiredRelay>,
    /// The owner of the message's partition.
    pub(super) owner: Option<OwnerId>,
    pub(super) place: Place,
    pub(super) broker: Broker,
    /// The consumers of a message that is on the stream, or why they are not known; `None` if nobody has asked.
    pub(super) readers: Option<Result<Readers, String>>,
    /// The pauses that hold its aggregate.
    pub(super) pauses: Vec<PauseRow>,
    pub(super) unpublished: u64,
    /// Numbers of the aggregate without a row, although the outbox keeps rows of their time.
    pub(super) holes: Vec<Hole>,
    /// What could not be looked at.
    pub(super) unseen: Vec<String>,
    /// Whether the outbox keeps rows of the aggregate's last recording.
    pub(super) keeps_last: bool,
}

impl Facts {
    pub(super) async fn of_message(store: &impl OutboxReader, id: MessageId) -> Result<Self, StoreError> {
        let mut facts = Self::empty(Subject::Message(id));
        let Some(message) = store.find(id).await? else {
            return Ok(facts);
        };
        facts.read(store, message).await?;
        Ok(facts)
    }

    pub(super) async fn of_aggregate(
        store: &impl OutboxReader,
        aggregate: &Aggregate,
    ) -> Result<Self, StoreError> {
        let mut facts = Self::empty(Subject::Aggregate(aggregate.clone()));
        facts.head = store.head(aggregate).await?;
        let block = store.block(aggregate).await?;
        let chosen = match block.as_ref().and_then(|block| Some((block, block.halted_by?))) {
            Some((block, row_id)) => dead_letter(store, block, row_id).await?,
            None => None,
        };
        let chosen = match chosen {
            Some(letter) => Some(letter),
            None => match unpublished(store, aggregate).await?.into_iter().next() {
                Some(first) => Some(first),
                None => last_settled(store, aggregate, facts.head).await?,
            },
        };
        let Some(chosen) = chosen else {
            return Ok(facts);
        };
        // It may have been deleted since, by a relay that keeps nothing.
        if let Some(message) = store.find(chosen.id).await? {
            facts.read(store, message).await?;
        }
        Ok(facts)
    }

    fn empty(subject: Subject) -> Self {
        Self {
            subject,
            message: None,
            before: None,
            block: None,
            halting: None,
            head: None,
            relays: Vec::new(),
            expired: Vec::new(),
            owner: None,
            place: Place::NotAsked,
            broker: Broker::NotAsked,
            readers: None,
            pauses: Vec::new(),
            unpublished: 0,
            holes: Vec::new(),
            unseen: Vec::new(),
            keeps_last: false,
        }
    }

    /// Looks for numbers of the aggregate without a row.
    pub(super) async fn look_for_holes(
        &mut self,
        store: &impl OutboxReader,
        kept: RowsKept,
    ) -> Result<(), StoreError> {
        let (Subject::Aggregate(aggregate), Some(head)) = (&self.subject, self.head) else {
            return Ok(());
        };
        let kept = kept.or_registered(store).await?;
        let is_kept = |at: OffsetDateTime| {
            at.checked_sub(Duration::HOUR)
                .is_some_and(|earliest| kept.keeps(earliest))
        };
        self.keeps_last = is_kept(head.recorded_at);
        // Every hole is older than the last recording.
        if !self.keeps_last {
            return Ok(());
        }
        let rows = of_aggregate(store, aggregate, Some(&head), &Selection::all(), UNPUBLISHED_MAX).await?;
        let end = Some(&head).filter(|_| !rows.has_more);
        match holes::of_rows(store, aggregate, &rows.messages, end).await? {
            Some(holes) => self.holes = holes,
            None => self.unseen.push(holes::NOT_KNOWN.to_owned()),
        }
        self.holes.retain(|hole| is_kept(hole.recorded_after));
        Ok(())
    }

    /// Reads what matters for a message.
    async fn read(&mut self, store: &impl OutboxReader, message: FoundMessage) -> Result<(), StoreError> {
        let stored = &message.stored;
        let aggregate = &stored.aggregate;
        self.block = store.block(aggregate).await?;
        if let Some((block, row_id)) = self
            .block
            .as_ref()
            .and_then(|block| Some((block, block.halted_by?)))
        {
            self.halting = dead_letter(store, block, row_id).await?;
        }
        let waiting = unpublished(store, aggregate).await?;
        self.unpublished = waiting.len() as u64 + u64::from(self.halting.is_some());
        let is_before = |other: &&StoredMessage| {
            stored.sequence.is_some() && other.sequence.is_some() && other.row_id < stored.row_id
        };
        if let Some(first) = waiting.iter().find(is_before) {
            self.before = store.find(first.id).await?;
        }
        self.pauses = pauses(store).await?;
        self.pauses
            .retain(|pause| pause.covers(&aggregate.aggregate_type));
        self.relays = store.relays().await?;
        if self.relays.is_empty() {
            self.expired = store.expired_relays().await?;
        }
        let partition = aggregate.partition();
        let owners = store.partitions().await?;
        self.owner = owners
            .into_iter()
            .find(|owner| owner.partition == partition)
            .and_then(|owner| owner.owner);
        self.message = Some(message);
        Ok(())
    }

    /// The message that the stream has to be asked about, if it is one.
    pub(super) fn published(&self) -> Option<&Message> {
        let found = self.message.as_ref()?;
        // The row of a message that came from the log does not say whether it was published.
        let may_be_out = matches!(
            found.stored.status,
            MessageStatus::Published | MessageStatus::Logged
        );
        found.message.as_ref().ok().filter(|_| may_be_out)
    }

    /// The message that has failed and is waited for: the first one of the aggregate, or the message itself.
    pub(super) fn failing_row(&self) -> Option<&FoundMessage> {
        let found = self.message.as_ref()?;
        let is_halted = self.halting.is_some() && found.stored.sequence.is_some();
        let waits = |found: &&FoundMessage| {
            matches!(
                found.stored.status,
                MessageStatus::Pending | MessageStatus::Waiting
            )
        };
        let first = Some(found).filter(waits)?;
        let first = self.before.as_ref().unwrap_or(first);
        (!is_halted && first.stored.failures > 0).then_some(first)
    }

    /// The message that the broker has to be asked about, if one has failed.
    pub(super) fn failing(&self) -> Option<&Message> {
        self.failing_row()?.message.as_ref().ok()
    }

    /// Takes the answer of the broker.
    pub(super) fn refused(&mut self, refused: Result<Option<Refused>, String>) {
        self.broker = match refused {
            Ok(Some(refused)) => Broker::Refuses(refused),
            Ok(None) => Broker::Takes,
            Err(error) => Broker::Silent(error),
        };
    }

    /// Takes the answer of the stream.
    pub(super) fn locate(&mut self, found: Result<Option<u64>, String>) {
        self.place = match found {
            Ok(Some(stream_sequence)) => Place::OnStream(stream_sequence),
            Ok(None) => Place::Gone,
            Err(error) => Place::Unknown(error),
        };
    }

    /// The message that the consumers have to be asked about, with its stream sequence, if it is on the stream.
    pub(super) fn on_stream(&self) -> Option<(&Message, u64)> {
        match self.place {
            Place::OnStream(stream_sequence) => Some((self.published()?, stream_sequence)),
            _ => None,
        }
    }

    /// The relay that owns the partition, if it is alive.
    pub(super) fn owning_relay(&self) -> Option<&LiveRelay> {
        let owner = self.owner?;
        self.relays.iter().find(|relay| relay.owner == owner)
    }
}

/// The last message of an aggregate of which nothing is pending or waiting. The head row says since when to look; without one, the last rows of everybody are looked
/// through.
async fn last_settled(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
    head: Option<AggregateHead>,
) -> Result<Option<StoredMessage>, StoreError> {
    // The rows of a transaction are some moments older or younger than its head rows.
    const APART: Duration = Duration::minutes(1);
    let mut selection = Selection::all().aggregate(aggregate);
    if let Some(head) = head {
        selection = selection.recorded_from(head.recorded_at - APART);
    }
    let mut found = of_aggregate(store, aggregate, head.as_ref(), &selection, UNPUBLISHED_MAX).await?;
    Ok(found.messages.pop())
}
