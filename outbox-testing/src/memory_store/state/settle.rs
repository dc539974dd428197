//! Applies the settlements of messages.

use outbox_core::store::{Lease, MessageStatus, Settlement, Verdict, storable_error};
use time::OffsetDateTime;

use super::State;
use super::index::{Block, precedes};

impl State {
    pub(in super::super) fn settle(&mut self, leases: &[Lease], settlements: &[Settlement]) -> usize {
        let is_owned = |partition: u16| {
            leases
                .iter()
                .any(|lease| lease.partition == partition && self.leases.is_current(lease))
        };
        let accepted: Vec<_> = settlements
            .iter()
            .filter(|settlement| is_owned(settlement.partition))
            .collect();
        for settlement in &accepted {
            self.settle_one(settlement);
        }
        accepted.len()
    }

    pub(in super::super) fn refuses(&self, settlements: &[Settlement]) -> bool {
        let id_of = |settlement: &Settlement| self.rows.get(&settlement.row_id).map(|row| row.message.id);
        let refused = &self.faults.refused;
        !refused.is_empty()
            && settlements
                .iter()
                .filter_map(id_of)
                .any(|id| refused.contains(&id))
    }

    fn settle_one(&mut self, settlement: &Settlement) {
        let Some(row) = self.rows.get(&settlement.row_id) else {
            return;
        };
        let is_open = matches!(row.status, MessageStatus::Pending | MessageStatus::Waiting);
        let is_it = settlement.id.is_none_or(|id| id == row.message.id);
        if !is_open || !is_it || row.aggregate().partition() != settlement.partition {
            return;
        }
        match &settlement.verdict {
            Verdict::Published { keep: true } => {
                let now = self.now();
                self.change(settlement.row_id, |row| {
                    row.status = MessageStatus::Published;
                    row.published_at = Some(now);
                });
            }
            Verdict::Published { keep: false } => self.delete(settlement.row_id),
            Verdict::Waits => self.set_aside(settlement.row_id),
            Verdict::Blocked {
                delay,
                error,
                attempt,
            } => {
                let until = self.now() + *delay;
                self.block(settlement.row_id, until, error.as_deref(), *attempt);
            }
            Verdict::Paused => {
                let until = self.paused_until(&row.message.aggregate);
                self.block(settlement.row_id, until, None, false);
            }
            Verdict::Dead { error, halt } => self.dead_letter(settlement.row_id, error, *halt),
        }
    }

    fn dead_letter(&mut self, row_id: i64, error: &str, halt: bool) {
        let Some(row) = self.rows.get(&row_id) else {
            return;
        };
        let halts = halt && row.is_sequenced();
        let block = self.index.blocks.get(&row.message.aggregate);
        let waits = halts && block.is_some_and(Block::is_halted);
        self.change(row_id, |row| {
            row.status = if waits {
                MessageStatus::Waiting
            } else {
                MessageStatus::Dead
            };
            row.attempts += 1;
            row.failures += 1;
            row.last_error = Some(storable_error(error));
            row.halts = halts && !waits;
        });
    }

    fn set_aside(&mut self, row_id: i64) {
        let now = self.now();
        let Some(row) = self.rows.get(&row_id) else {
            return;
        };
        let (delayed, place) = (row.delayed_at(now), row.place());
        let aggregate = row.message.aggregate.clone();
        if !row.is_sequenced() {
            if let Some(at) = delayed {
                self.change(row_id, |row| {
                    row.status = MessageStatus::Waiting;
                    row.waits_until = at;
                });
            }
            return;
        }
        if delayed.is_none() && !self.index.blocks.contains_key(&aggregate) {
            return;
        }
        let until = delayed.unwrap_or(now);
        let block = self.index.block(&aggregate, until);
        let first = block.first();
        if first.is_none_or(|first| !precedes(first, (place, row_id))) {
            block.until = until;
        }
        self.change(row_id, |row| row.status = MessageStatus::Waiting);
    }

    fn block(&mut self, row_id: i64, until: OffsetDateTime, error: Option<&str>, attempt: bool) {
        let Some(row) = self.rows.get(&row_id) else {
            return;
        };
        if row.is_sequenced() {
            let aggregate = row.message.aggregate.clone();
            self.index.block(&aggregate, until).until = until;
        }
        self.change(row_id, |row| {
            row.status = MessageStatus::Waiting;
            row.waits_until = until;
            row.attempts += u32::from(attempt);
            if let Some(error) = error {
                row.failures += 1;
                row.last_error = Some(storable_error(error));
            }
        });
    }
}
