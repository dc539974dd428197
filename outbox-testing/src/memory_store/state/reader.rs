//! Lookups for diagnosis.

use std::sync::Arc;

use outbox_core::headers::CAUSATION_ID;
use outbox_core::message::{Aggregate, MessageId};
use outbox_core::store::{
    AggregateHead, BlockedAggregate, FoundMessage, FoundPublished, MessageStatus, PublishedFound,
    PublishedSearch,
};

use super::admin::since;
use super::{Row, State};

impl State {
    pub(in super::super) fn find(&self, id: MessageId) -> Option<FoundMessage> {
        let row = self.rows.get(self.ids.get(&id)?)?;
        let now = self.now();
        // Databases store the back-off of an unsequenced message in the column of the delay.
        let is_alone = row.status == MessageStatus::Waiting && !row.is_sequenced();
        let due = row
            .available_at
            .max(is_alone.then_some(row.waits_until))
            .filter(|due| *due > now);
        Some(FoundMessage {
            stored: Row::stored(row),
            delayed_for: due.map(|due| since(now, due)),
            message: row.fetched(now).message.map(Arc::unwrap_or_clone),
        })
    }

    pub(in super::super) fn search_published(&self, search: &PublishedSearch) -> PublishedFound {
        let is_within = |row: &&Row| {
            let at = row.message.created_at;
            search.from.is_none_or(|from| at >= from) && search.until.is_none_or(|until| at < until)
        };
        let mut last_first = self
            .ids
            .values()
            .rev()
            .filter_map(|row_id| self.rows.get(row_id))
            .filter(is_within);
        let most = search.looked_at_max.get() as usize;
        let looked_at: Vec<&Row> = last_first.by_ref().take(most).collect();
        let is_it = |row: &&&Row| {
            let is_published = matches!(row.status, MessageStatus::Published | MessageStatus::Logged);
            is_published && search.aggregate.as_ref().is_none_or(|of| of == row.aggregate())
        };
        let found = |row: &&Row| FoundPublished {
            stored: Row::stored(row),
            causation_id: row.message.headers.get(CAUSATION_ID).map(str::to_owned),
        };
        PublishedFound {
            messages: looked_at
                .iter()
                .filter(is_it)
                .take(search.limit.get() as usize)
                .map(found)
                .collect(),
            looked_from: last_first.next().map(|row| row.message.created_at),
        }
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
        Some(block.shown(aggregate, self.now()))
    }
}
