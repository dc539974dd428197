//! Reads facts for an explanation.
//!
//! Invariant: every read is bounded. The stream is searched for one message only.

use outbox::core::{
    Aggregate, AggregateHead, BlockedAggregate, ExpiredRelay, FoundMessage, LiveRelay, Message, MessageId,
    MessageStatus, OutboxReader, OwnerId, Selection, StoreError, StoredMessage,
};
use time::{Duration, OffsetDateTime};

use crate::admin::holes::{self, Hole};
use crate::admin::of_aggregate::{UNPUBLISHED_MAX, of_aggregate, unpublished};
use crate::admin::pause::{PauseRow, pauses};
use crate::admin::prove::RowsKept;
use crate::admin::recheck::Refused;
use crate::admin::relays::dead_letter;
use crate::admin::why::{MessageOrAggregate, Readers};

#[derive(Debug)]
pub(super) struct Facts {
    pub(super) subject: MessageOrAggregate,
    pub(super) message: Option<FoundMessage>,
    pub(super) before: Option<FoundMessage>,
    pub(super) block: Option<BlockedAggregate>,
    pub(super) halting: Option<StoredMessage>,
    pub(super) head: Option<AggregateHead>,
    pub(super) relays: Vec<LiveRelay>,
    pub(super) expired: Vec<ExpiredRelay>,
    pub(super) owner: Option<OwnerId>,
    /// The stream sequence; `None` if the stream was not asked.
    pub(super) place: Option<Result<Option<u64>, String>>,
    /// Whether the broker would reject the failing message; `None` if it was not asked.
    pub(super) refused: Option<Result<Option<Refused>, String>>,
    pub(super) readers: Option<Result<Readers, String>>,
    pub(super) pauses: Vec<PauseRow>,
    pub(super) unpublished: u64,
    pub(super) holes: Vec<Hole>,
    pub(super) unseen: Vec<String>,
    /// Whether the outbox keeps rows of the aggregate's last recording time.
    pub(super) keeps_last: bool,
}

impl Facts {
    pub(super) async fn of_message(store: &impl OutboxReader, id: MessageId) -> Result<Self, StoreError> {
        let mut facts = Self::empty(MessageOrAggregate::Message(id));
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
        let mut facts = Self::empty(MessageOrAggregate::Aggregate(aggregate.clone()));
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
        if let Some(message) = store.find(chosen.id).await? {
            facts.read(store, message).await?;
        }
        Ok(facts)
    }

    fn empty(subject: MessageOrAggregate) -> Self {
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
            place: None,
            refused: None,
            readers: None,
            pauses: Vec::new(),
            unpublished: 0,
            holes: Vec::new(),
            unseen: Vec::new(),
            keeps_last: false,
        }
    }

    pub(super) async fn look_for_holes(
        &mut self,
        store: &impl OutboxReader,
        kept: RowsKept,
    ) -> Result<(), StoreError> {
        let (MessageOrAggregate::Aggregate(aggregate), Some(head)) = (&self.subject, self.head) else {
            return Ok(());
        };
        let kept = kept.or_registered(store).await?;
        let is_kept = |at: OffsetDateTime| {
            at.checked_sub(Duration::HOUR)
                .is_some_and(|earliest| kept.keeps(earliest))
        };
        self.keeps_last = is_kept(head.recorded_at);
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

    pub(super) fn published(&self) -> Option<&Message> {
        let found = self.message.as_ref()?;
        // A logged row does not record whether it was published.
        let may_be_out = matches!(
            found.stored.status,
            MessageStatus::Published | MessageStatus::Logged
        );
        found.message.as_ref().ok().filter(|_| may_be_out)
    }

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

    pub(super) fn failing(&self) -> Option<&Message> {
        self.failing_row()?.message.as_ref().ok()
    }

    pub(super) fn on_stream(&self) -> Option<(&Message, u64)> {
        let found = self.place.as_ref()?.as_ref().ok()?;
        Some((self.published()?, (*found)?))
    }

    pub(super) fn owning_relay(&self) -> Option<&LiveRelay> {
        let owner = self.owner?;
        self.relays.iter().find(|relay| relay.owner == owner)
    }
}

/// The head row bounds the search; without a head row, the newest rows are searched.
async fn last_settled(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
    head: Option<AggregateHead>,
) -> Result<Option<StoredMessage>, StoreError> {
    // Times of a transaction's message and head rows differ by moments.
    const APART: Duration = Duration::minutes(1);
    let mut selection = Selection::all().aggregate(aggregate);
    if let Some(head) = head {
        selection = selection.recorded_from(head.recorded_at - APART);
    }
    let mut found = of_aggregate(store, aggregate, head.as_ref(), &selection, UNPUBLISHED_MAX).await?;
    Ok(found.messages.pop())
}
