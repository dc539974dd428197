//! Single facts, for whoever asks why something does not arrive.

use super::admin::since;
use super::{Row, State};
use crate::message::{Aggregate, MessageId};
use crate::store::{AggregateHead, BlockedAggregate, FoundMessage, MessageStatus};

impl State {
    pub(in super::super) fn find(&self, id: MessageId) -> Option<FoundMessage> {
        let row = self.rows.get(self.ids.get(&id)?)?;
        let now = self.now();
        // Databases keep the end of an unsequenced message's back-off where they keep its time.
        let is_alone = row.status == MessageStatus::Waiting && !row.is_sequenced();
        let due = row
            .available_at
            .max(is_alone.then_some(row.waits_until))
            .filter(|due| *due > now);
        Some(FoundMessage {
            stored: Row::stored(row),
            delayed_for: due.map(|due| since(now, due)),
            message: row.fetched(now).message,
        })
    }

    pub(in super::super) fn head(&self, aggregate: &Aggregate) -> Option<AggregateHead> {
        let head = self.heads.get(aggregate).filter(|head| head.sequence > 0)?;
        Some(AggregateHead {
            last_sequence: head.sequence,
            recorded_at: head.recorded_at?,
        })
    }

    pub(in super::super) fn block_of(&self, aggregate: &Aggregate) -> Option<BlockedAggregate> {
        let block = self.index.blocks.get(aggregate)?;
        Some(BlockedAggregate {
            aggregate: aggregate.clone(),
            halted_by: block.halted_by,
            blocked_for: (!block.is_halted()).then(|| since(self.now(), block.until)),
        })
    }
}
