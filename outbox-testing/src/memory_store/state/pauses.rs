//! Pauses, and the messages that they hold.

use outbox_core::message::Aggregate;
use outbox_core::store::{MessageStatus, Operation, Pause, PauseRequest, UNPAUSED_WAIT, storable_error};
use time::OffsetDateTime;

use super::State;
use super::admin::since;

/// 9000-01-01: the end time of blocks that last until a pause is finished.
const HELD_UNTIL_SECONDS: i64 = 221_845_392_000;

#[derive(Debug)]
pub(super) struct PauseRow {
    request: PauseRequest,
    since: OffsetDateTime,
    ends_at: Option<OffsetDateTime>,
}

impl PauseRow {
    fn stands(&self, now: OffsetDateTime) -> bool {
        self.ends_at.is_none_or(|ends_at| ends_at > now)
    }
}

fn held_until() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(HELD_UNTIL_SECONDS).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

impl State {
    pub(in super::super) fn pauses(&self) -> Vec<Pause> {
        let now = self.now();
        let read = |row: &PauseRow| Pause {
            aggregate_type: row.request.aggregate_type.clone(),
            reason: row.request.reason.clone(),
            by: row.request.by.clone(),
            since: row.since,
            ends_in: row.ends_at.map(|ends_at| since(now, ends_at)),
        };
        self.pauses.values().map(read).collect()
    }

    pub(in super::super) fn pause_as(&mut self, request: &PauseRequest, operation: &Operation) -> bool {
        if self.operation(operation.id).is_some() {
            return false;
        }
        let now = self.now();
        let row = PauseRow {
            request: PauseRequest {
                reason: storable_error(&request.reason),
                by: storable_error(&request.by),
                ..request.clone()
            },
            since: now,
            ends_at: request.lasts.map(|lasts| now + lasts),
        };
        self.pauses.insert(request.aggregate_type.clone(), row);
        self.note(operation, 1);
        true
    }

    pub(in super::super) fn unpause_as(
        &mut self,
        aggregate_type: Option<&str>,
        operation: &Operation,
    ) -> bool {
        if self.operation(operation.id).is_some() {
            return false;
        }
        let now = self.now();
        let row = self.pauses.get_mut(&aggregate_type.map(str::to_owned));
        let Some(row) = row.filter(|row| row.stands(now)) else {
            return false;
        };
        row.ends_at = Some(now);
        self.note(operation, 1);
        true
    }

    pub(in super::super) fn finish_pauses(&mut self) -> bool {
        let now = self.now();
        let ended: Vec<_> = self
            .pauses
            .extract_if(.., |_, row| !row.stands(now))
            .filter_map(|(aggregate_type, _)| aggregate_type)
            .collect();
        for aggregate_type in ended {
            let is_of = |aggregate: &Aggregate| aggregate.aggregate_type == aggregate_type;
            for (aggregate, block) in &mut self.index.blocks {
                if is_of(aggregate) && block.until == held_until() {
                    block.until = now;
                }
            }
            let alone: Vec<i64> = self
                .rows
                .values()
                .filter(|row| row.status == MessageStatus::Waiting && !row.is_sequenced())
                .filter(|row| is_of(&row.message.aggregate) && row.waits_until == held_until())
                .map(|row| row.row_id)
                .collect();
            for row_id in alone {
                self.change(row_id, |row| row.waits_until = now);
            }
        }
        false
    }

    pub(in super::super) fn drop_ended_pauses(&mut self) {
        let now = self.now();
        self.pauses.retain(|_, row| row.stands(now));
    }

    pub(super) fn is_paused(&self, aggregate: &Aggregate) -> bool {
        let now = self.now();
        let types = [None, Some(aggregate.aggregate_type.clone())];
        let mut pauses = types.iter().filter_map(|of| self.pauses.get(of));
        pauses.any(|row| row.stands(now))
    }

    /// Returns the time until which a message is held. Without an active pause, this time is soon.
    pub(super) fn paused_until(&self, aggregate: &Aggregate) -> OffsetDateTime {
        let now = self.now();
        let row = self.pauses.get(&Some(aggregate.aggregate_type.clone()));
        match row.is_some_and(|row| row.stands(now)) {
            true => held_until(),
            false => now + UNPAUSED_WAIT,
        }
    }
}
